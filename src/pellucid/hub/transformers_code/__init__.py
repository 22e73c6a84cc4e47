"""Code that is written into converted folders and imported only there (`pellucid.hub.standalone`)."""
