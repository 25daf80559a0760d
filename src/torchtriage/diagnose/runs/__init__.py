"""What ``torchtriage run`` recorded, read and analysed together."""
