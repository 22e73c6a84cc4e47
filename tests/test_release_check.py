"""The checks of a release name what is wrong."""

from tests.release_check import faults_of_version

from pellucid.version import __version__

CHANGELOG = f"# Changelog\n\n## Unreleased\n\nNew lines go here.\n\n## {__version__}\n\n- A thing.\n"
CITATION = f"cff-version: 1.2.0\nversion: {__version__}\n"


def test_a_version_that_every_file_names_has_no_faults():
    assert faults_of_version(CHANGELOG, CITATION) == []


def test_each_fault_of_the_version_is_named():
    (left,) = faults_of_version(CHANGELOG.replace("New lines", "- New lines"), CITATION)
    assert "lines under" in left
    (older,) = faults_of_version(CHANGELOG.replace(__version__, "0.0.9"), CITATION)
    assert "latest release is 0.0.9" in older
    (citation,) = faults_of_version(CHANGELOG, "version: 0.0.9\n")
    assert "CITATION.cff" in citation
    (first,) = faults_of_version(CHANGELOG.replace("Unreleased", "Later"), CITATION)
    assert "does not begin" in first
