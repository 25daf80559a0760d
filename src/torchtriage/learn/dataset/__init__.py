"""The open benchmark: programs with known faults, recorded, labelled and scored."""
