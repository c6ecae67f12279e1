package standin

// RaceEnabled reports whether the program runs under the race detector.
const RaceEnabled = raceEnabled
