"""Code that is written into converted folders, and is imported there alone (`pellucid.hub.standalone`)."""
