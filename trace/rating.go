package trace

import "fmt"

// Rating has the bytes that the maker of a drive warrants to be written to it in its life.
type Rating struct {
	Bytes     int64 `json:"rated_bytes"`
	IsAssumed bool  `json:"rated_is_assumed,omitempty"` // the user has not said what the maker warrants
	// DrivePart is the part of a run's written bytes that the drive gets which is written most, where they are on several,
	// as the plan predicts it; 0: all of them.
	DrivePart float64 `json:"drive_part,omitempty"`
}

// OfDrive is the part of a run's written bytes that the drive gets which is written most.
func (r Rating) OfDrive(written int64) int64 {
	if !(r.DrivePart > 0 && r.DrivePart < 1) { // of a file, too, that anybody may have written
		return written
	}
	return int64(r.DrivePart * float64(written))
}

// AssumedRatingBytes stands in for a rating that is not known. Samsung's data sheets of the 970 EVO Plus and of the 980
// PRO, of 1 TB each, have 600 TB.
const AssumedRatingBytes = 600e12

// RatingOf is a rating of bytes, or the assumed one for 0.
func RatingOf(bytes int64) Rating {
	if bytes == 0 {
		return Rating{Bytes: AssumedRatingBytes, IsAssumed: true}
	}
	return Rating{Bytes: bytes}
}

// ShareOf is the part of the rating that a number of written bytes takes.
func (r Rating) ShareOf(written int64) float64 { return float64(written) / float64(r.Bytes) }

// Text says which part of the rating a number of written bytes takes and, of one that is assumed, how to set it.
func (r Rating) Text(written int64) string {
	share := 100 * r.ShareOf(written)
	text := fmt.Sprintf("%.2g%%", share)
	switch {
	case share >= 10:
		text = fmt.Sprintf("%.0f%%", share)
	case share < 0.01:
		text = "less than 0.01%"
	}
	if r.IsAssumed {
		return fmt.Sprintf("%s of the %s that the drive is assumed to be rated for (memory.rated_writes sets it)", text,
			FormatWritten(r.Bytes))
	}
	return fmt.Sprintf("%s of the %s that the drive is rated for", text, FormatWritten(r.Bytes))
}

// FormatWritten is a number of bytes as makers of drives write it: "1.5 TB" is 1.5e12 bytes.
func FormatWritten(bytes int64) string {
	for _, u := range []struct {
		name  string
		bytes float64
	}{{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}} {
		switch x := float64(bytes) / u.bytes; {
		case x >= 99.95:
			return fmt.Sprintf("%.0f %s", x, u.name)
		case x >= 1:
			return fmt.Sprintf("%.3g %s", x, u.name)
		}
	}
	return fmt.Sprintf("%d B", bytes)
}
