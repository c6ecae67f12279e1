package vfs

// OpKind is the kind of an operation on files.
type OpKind uint8

// The operations that [Mem] and [Faulty] count.
const (
	OpOpen OpKind = iota
	OpRead
	OpWrite
	OpTruncate
	OpPreallocate
	OpSync
	OpStat
	OpClose
	OpRename
	OpLink
	OpRemove
	OpMkdir
	OpReadDir
	OpSyncDir
	OpFreeBytes
	OpLock
	OpExchange
)

// String is the name of the system call, or nearly.
func (k OpKind) String() string {
	return [...]string{"open", "read", "write", "truncate", "preallocate", "sync", "stat", "close", "rename", "link",
		"remove", "mkdir", "readdir", "syncdir", "statfs", "lock", "exchange"}[k]
}

// Op is one operation on a [Mem] or a [Faulty].
type Op struct {
	N     int // 1 for the first one
	Kind  OpKind
	Name  string // the path; the new one of a rename or link
	Bytes int    // to be read or written
	Flag  int    // of an open
}

// Outcome decides an operation's effect. The zero Outcome lets it be.
type Outcome struct {
	Err error
	// Written is the number of bytes of a failing write that take effect all the same.
	Written int
	// Damage, without Err and only in a [Faulty], changes the bytes that a read returns or a write stores, without an
	// error.
	Damage func([]byte)
}

// Intercept asks f about every operation from now on; nil lets all be. F must not call the Mem.
func (m *Mem) Intercept(f func(Op) Outcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.intercept = f
}

// Ops is the number of operations so far. A test runs its subject once to learn how many there are, and then fails
// each.
func (m *Mem) Ops() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ops
}

// FailNth makes operation n fail, and no other.
func FailNth(n int, err error) func(Op) Outcome {
	return func(op Op) Outcome {
		if op.N == n {
			return Outcome{Err: err}
		}
		return Outcome{}
	}
}

// FailFrom makes operation n and all later ones that change or sync something fail, as a disk does that is full
// (ENOSPC) or was pulled out (EIO).
func FailFrom(n int, err error) func(Op) Outcome {
	return func(op Op) Outcome {
		switch op.Kind {
		case OpRead, OpStat, OpReadDir, OpClose, OpRemove, OpFreeBytes:
			return Outcome{}
		}
		if op.N >= n {
			return Outcome{Err: err}
		}
		return Outcome{}
	}
}

// ShortNth makes operation n, if it is a write, put down half of its bytes and fail. Other operations just fail.
func ShortNth(n int, err error) func(Op) Outcome {
	return func(op Op) Outcome {
		if op.N == n {
			return Outcome{Err: err, Written: op.Bytes / 2}
		}
		return Outcome{}
	}
}

// begin counts an operation and says how many of its bytes take effect and how it fails. The caller holds the lock.
func (m *Mem) begin(kind OpKind, name string, bytes int) (int, error) {
	return m.beginOp(Op{Kind: kind, Name: name, Bytes: bytes})
}

func (m *Mem) beginOp(op Op) (int, error) {
	m.ops++
	op.N = m.ops
	bytes := op.Bytes
	if m.intercept == nil {
		return bytes, nil
	}
	o := m.intercept(op)
	if o.Err == nil {
		return bytes, nil
	}
	return min(max(o.Written, 0), bytes), o.Err
}
