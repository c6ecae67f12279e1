package cpu

// Fail makes the stream fail with err, as an operation would.
func (s *Stream) Fail(err error) {
	s.operands.Op, s.operands.List = "Fail", nil
	s.try(func() error { return err })
}

// RaceEnabled reports whether the program runs under the race detector.
const RaceEnabled = raceEnabled
