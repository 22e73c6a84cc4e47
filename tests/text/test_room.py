"""What the room as a whole must not do."""

import subprocess
import sys


def test_the_room_is_imported_without_torch():
    script = "import sys, pellucid.text; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
