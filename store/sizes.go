package store

import (
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// Quota is the number of staging buffers that each lane of a device, and of the host, has for each kind of extent. A
// buffer holds a piece from when a read of it starts, or a write of it is borrowed, until the lane has released it and,
// after a write, it is on disk.
//
// A lane needs one buffer of a kind for each piece of that kind that it holds at once; with fewer it could wait
// forever. With more it reads ahead and writes back in the background.
type Quota [trace.NumLanes][Kinds]int

// LaneQuota is the quota for lanes that work as package stream's do:
//
//   - fetch holds two pieces of weights, or of saved layer inputs: one that moves to the device and the next one. It has
//     `moves` further pieces on their way from disk.
//   - drain holds two pieces of gradients, or of saved layer inputs. It has `moves` further pieces on their way to disk.
//   - send and receive, which move weights between hosts, hold two pieces of weights, and have as many further ones.
//   - update holds one piece of each kind. It has `updates` further pieces of each kind on their way from disk, and as
//     many on their way to disk. It reads all kinds and writes all except gradients, which it writes only for the embedding.
//
// Update has all kinds of a piece on their way at once, and so keeps a drive busy with one piece ahead. A lane that
// moves one kind needs as many pieces as the drive wants requests. With 0 nothing overlaps, and nothing deadlocks.
func LaneQuota(updates, moves int) Quota {
	var q Quota
	for _, lane := range []trace.Lane{trace.Fetch, trace.Send, trace.Receive} {
		q[lane][Weights] = 2 + moves
	}
	q[trace.Fetch][Inputs] = 2 + moves
	for _, kind := range []Kind{Grad, GradSum, Inputs} {
		q[trace.Drain][kind] = 2 + moves
	}
	for kind := range Kind(Kinds) {
		if kind != Inputs {
			q[trace.Update][kind] = 1 + 2*updates
		}
	}
	return q
}

// StagingBytes is the host memory that a disk with these extents, this quota and that crew reserves for staging.
func StagingBytes(specs []Spec, quota Quota, crew trace.Crew) int64 {
	lanes := crew.Workers()
	var sum int64
	for kind, bytes := range bufferBytes(specs) {
		sum += int64(quota.buffers(Kind(kind), lanes)) * bytes
	}
	return sum
}

// DriveBytes is the space that a disk with these extents, dealt like that, reserves on each drive: a file for each
// piece and spare ones to write new versions to. Each version that a checkpoint holds on to comes on top of it, from
// when [Disk.Files] lists it.
func DriveBytes(specs []Spec, deal Deal, workers int) []int64 {
	var all []int64
	for _, counts := range fileCounts(specs, deal, workers) {
		var sum int64
		for bytes, n := range counts {
			sum += bytes * int64(n)
		}
		all = append(all, sum)
	}
	return all
}

// buffers counts the buffers of a kind over lanes.
func (q *Quota) buffers(kind Kind, lanes []trace.Worker) int {
	n := 0
	for _, lane := range lanes {
		n += q[lane.Lane][kind]
	}
	return n
}

// bufferBytes are, by kind, the sizes of buffers, whichever lane has them: that of the longest piece. They are 0 for a
// kind of which there is no extent.
func bufferBytes(specs []Spec) (bytes [Kinds]int64) {
	for _, s := range specs {
		bytes[s.Kind] = max(bytes[s.Kind], fileBytes(min(s.Piece, s.Bytes)))
	}
	return bytes
}

// fileBytes is the length of a file that holds n bytes: direct I/O moves whole blocks.
func fileBytes(n int64) int64 { return (n + vfs.DirectAlign - 1) / vfs.DirectAlign * vfs.DirectAlign }

// fileCounts returns the number of files of each length, by drive. A file is recycled only for pieces of its length and
// its drive. Each worker writes one piece at a time, so each length needs a spare file for every worker of the drive.
func fileCounts(specs []Spec, deal Deal, workers int) []map[int64]int {
	pieces, counts := make([]map[int64]int, deal.drives()), make([]int, deal.drives())
	for drive := range pieces {
		pieces[drive] = map[int64]int{}
	}
	var first map[ID]int
	if len(deal) > 0 {
		first = numbers(specs)
	}
	for _, s := range specs {
		whole, number := int(s.Bytes/s.Piece), first[s.ID]
		clear(counts)
		deal.among(counts, number, whole)
		for drive, n := range counts {
			if n > 0 {
				pieces[drive][fileBytes(s.Piece)] += n
			}
		}
		if rest := s.Bytes % s.Piece; rest > 0 {
			pieces[deal.drive(number+whole)][fileBytes(rest)]++
		}
	}
	for _, of := range pieces {
		for bytes, n := range of {
			of[bytes] = n + min(n, workersOr(workers))
		}
	}
	return pieces
}

// defaultWorkers keep a drive busy; each has one block on its way.
const defaultWorkers = 4

func workersOr(n int) int {
	if n > 0 {
		return n
	}
	return defaultWorkers
}
