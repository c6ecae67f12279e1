package nn

import "github.com/millrace/millrace/device"

// Away says how much of what a block holds between its visits ([Held]) waits in host memory, where the device's
// operations read and write it over the link. Each level includes the ones before it. They come in the order of what a
// byte of room costs. With H the hidden width, K the experts of a row, and every row once in each direction:
//
//	level          rows of     bytes over the link, for each byte that the device has more room
//	OutputsAway    [S, K*H]    4: written and read in each direction
//	ResidualAway   [S, H]      3 to 4, of backward alone; a dense feed-forward's rows of WithDense as well
//	GradientAway   [S, H]      K + 4, of backward alone: each choice gathers it
//	NormAway       [S, H]      2K + 6: each choice gathers it, in both directions
//
// The first levels are enough for most cards. Logits, choices and weights stay: they are small.
type Away uint8

// The levels.
const (
	AllHere      Away = iota // all of it is in the device's memory
	OutputsAway              // what experts made of rows, and the gradients of these
	ResidualAway             // and the residual stream that was normed
	GradientAway             // and the gradient of the normed input
	NormAway                 // and the normed input
	aways
)

// Aways is the number of levels.
const Aways = int(aways)

// HeldMemory has the memory in which Held is placed: of a device, and of the host for what is away.
type HeldMemory struct {
	Here, Host *device.Arena
	Away       Away
}

// at is the arena of what is away from a level on; AllHere: it never is.
func (m HeldMemory) at(from Away) *device.Arena {
	if from != AllHere && m.Away >= from {
		return m.Host
	}
	return m.Here
}

// overLink is memory of the host, of which a counter counts what operations read and write.
type overLink struct{}

func (overLink) Bytes() int64 { return counted.Len }
func (overLink) Close() error { return nil }

// reads counts what an operation reads of host memory: of each matrix some rows.
func (c *counter) reads(rows int64, mats ...device.Mat) { c.Up += hostBytes(rows, mats) }

// writes counts what it writes there.
func (c *counter) writes(rows int64, mats ...device.Mat) { c.Down += hostBytes(rows, mats) }

// turns counts an operation that reads all rows of x and writes those of y there.
func (c *counter) turns(y device.Mat, x ...device.Mat) {
	c.writes(int64(y.Rows), y)
	for _, x := range x {
		c.reads(int64(x.Rows), x)
	}
}

func hostBytes(rows int64, mats []device.Mat) (bytes int64) {
	for _, x := range mats {
		if x.Buf == (overLink{}) {
			bytes += rows * int64(x.Cols) * x.DType.Bytes()
		}
	}
	return bytes
}
