"""What of a Block is in memory when: whose memory a value is, until when it is read, how many bytes live at a time."""
