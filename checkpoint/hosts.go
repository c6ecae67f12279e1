package checkpoint

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/millrace/millrace/vfs"
)

// The problem. The state of a run on several hosts is spread over them. Its checkpoint is to be one that a single
// process could have written, so that any number of hosts resumes from it. All write at the same time, and any of them
// can run out of space, or vanish.
//
// The obvious answer is a directory for each host. It makes the number of hosts part of the format: a program that
// reads, verifies or removes a checkpoint would have to put it together first.
//
// The answer here: the names and bytes of an extent's files do not depend on who writes them. So all hosts write into
// one hidden directory of a file system that they share, each the extents that it has. Host 0 does what must be done
// once. Hosts exchange what the others must know, at three moments:
//
//	Create:  host 0 makes the directory, under a name that no other save has. Exchange: its path, or what went wrong.
//	Add, Link, Copy as for one process
//	Commit:  each host syncs its files and their names. Exchange: what it has written, or what went wrong.
//	         Host 0 writes the manifest and gives the directory its name. Exchange: the name, or what went wrong.
//
// So a save is complete on all hosts or on none. A host that vanishes ends an exchange with an error on the others, and
// what it has left has a hidden name, which the next Acquire removes. If it is host 0 that vanishes in the last
// exchange, the others do not learn whether the checkpoint is there; the next run finds it, or does not.
//
// A host can outlive host 0, whose process has the lock, and write for as long as it waits for the others. The next
// process of the run may save the same step by then. So a save has a name of its own, and such a host finds its
// directory gone.

// Hosts are the processes that save the state of a run together, as one of them sees them. A nil one is a process
// alone, which exchanges nothing.
//
// All hosts call Create, Writer.Commit and CheckShared, in one order with whatever else uses their connection. The
// methods are for one goroutine.
type Hosts struct {
	Host int                   // this one; host 0 makes, renames and removes for all
	Name func(host int) string // of a host, for people
	// Exchange returns to every host what each host calls it with, by host. The n-th calls of all hosts belong
	// together. An error is final: no host calls it again.
	Exchange func(b []byte) ([][]byte, error)

	lost error // of the exchange that has failed
	most int   // bytes of a list in an exchange; 0: mostAtOnce
}

// mostAtOnce bounds what a host adds to an exchange. A list of 10^12 parameters has some hundred MB.
const mostAtOnce = 16 << 20

// Leads reports whether this host does what is done once.
func (h *Hosts) Leads() bool { return h == nil || h.Host == 0 }

// Lost is the error of the exchange that has failed, after which hosts save nothing together; nil if none has.
func (h *Hosts) Lost() error {
	if h == nil {
		return nil
	}
	return h.lost
}

// hostError is an error of one of several hosts. All of them have it in the same words.
type hostError struct {
	host string
	why  string // with the way to get rid of it
	err  error  // nil on the other hosts
}

func (e *hostError) Error() string { return e.host + ": " + e.why }
func (e *hostError) Unwrap() error { return e.err }

// told is the first line of what a host tells the others.
type told struct {
	Save  bool   `json:"save"` // true: a message of a save, and of nothing else that hosts tell each other
	Path  string `json:"path,omitempty"`
	Error string `json:"error,omitempty"`
	More  bool   `json:"more,omitempty"` // what the host adds continues in another exchange
}

// exchange has all hosts learn the path that host 0 calls it with, or the first error of a host. On success host 0 gets
// what each host adds, by host, in as many exchanges as the longest of it takes.
func (h *Hosts) exchange(path string, err error, add []byte) (of0 string, added [][]byte, _ error) {
	most := cmp.Or(h.most, mostAtOnce)
	for more := true; more; {
		n := min(len(add), most)
		mine := told{Save: true, Path: path, More: n < len(add)}
		if err != nil {
			mine, n = told{Save: true, Error: err.Error() + fix(err)}, 0
		}
		all, rest, errPeers := h.tell(mine, add[:n])
		if errPeers != nil {
			return "", nil, errPeers
		}
		more, add = false, add[n:]
		if added == nil {
			added = make([][]byte, len(all))
		}
		for host, theirs := range all {
			if theirs.Error != "" {
				e := &hostError{host: h.Name(host), why: theirs.Error}
				if host == h.Host {
					e.err = err
				}
				return "", nil, e
			}
			if h.Leads() {
				added[host] = append(added[host], rest[host]...)
			}
			more = more || theirs.More
		}
		of0 = all[0].Path
	}
	return of0, added, nil
}

// tell returns what each host tells, and the rest of its message. The error is that of the connection.
func (h *Hosts) tell(mine told, rest []byte) (all []told, rests [][]byte, _ error) {
	if h.lost != nil {
		return nil, nil, h.lost
	}
	line, err := json.Marshal(mine)
	if err != nil {
		return nil, nil, err
	}
	var messages [][]byte
	if messages, h.lost = h.Exchange(append(append(line, '\n'), rest...)); h.lost != nil {
		return nil, nil, h.lost
	}
	all, rests = make([]told, len(messages)), make([][]byte, len(messages))
	for host, message := range messages {
		line, rest, _ := bytes.Cut(message, []byte("\n"))
		rests[host] = rest
		if err := json.Unmarshal(line, &all[host]); err != nil || !all[host].Save {
			h.lost = fmt.Errorf("%s does not save at this point of the run: give all hosts the same program",
				h.Name(host))
			return nil, nil, h.lost
		}
	}
	return all, rests, nil
}

// Create begins a save. Host 0 calls begin, which returns its writer (Directory.Create); the others get one for the
// same directory. Extents are all that the checkpoint is to hold, on each host; a host adds those that it has, each
// whole. The error is that of begin. That another host does not see the directory is an error of its writer.
func (h *Hosts) Create(fsys vfs.FS, step int, extents []Spec, begin func() (*Writer, error)) (w *Writer, err error) {
	if h == nil {
		return begin()
	}
	var hidden string
	if h.Leads() {
		if w, err = begin(); err == nil {
			w.hosts = h
			hidden, err = w.takeOwnName()
		}
	}
	hidden, _, errAny := h.exchange(hidden, err, nil)
	switch {
	case err != nil:
		return nil, err
	case errAny != nil:
		if w != nil {
			w.Abort()
		}
		return nil, errAny
	case w != nil:
		return w, nil
	}
	w = newWriter(fsys, hidden, step, extents)
	w.hosts = h
	if _, err := fsys.Stat(hidden); err != nil {
		w.Fail(h.unseen(hidden, err))
	}
	return w, nil
}

// takeOwnName gives the directory of a save another name, and returns it. On an error the save ends.
func (w *Writer) takeOwnName() (string, error) {
	name := ownName(w.hidden)
	if err := w.fsys.Rename(w.hidden, name); err != nil {
		w.Abort()
		return "", w.failure(err)
	}
	w.hidden = name
	return name, nil
}

// unseen is the error of a file or directory that host 0 has made, and that this one does not see.
func (h *Hosts) unseen(path string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fmt.Errorf("%s, which %s has made, is not there: %s", path, h.Name(0), mustShare)
}

const mustShare = "output_dir, and save.fallback, must be in a file system that all hosts share, under the same path"

// CheckShared fails if the hosts do not share a directory, which host 0 holds; it is nil on the others. Something that
// host 0 makes there is to be seen by all.
func (h *Hosts) CheckShared(fsys vfs.FS, d *Directory) error {
	if h == nil {
		return nil
	}
	var mark, dir string
	var err error
	if h.Leads() {
		dir = filepath.Join(d.path, hiddenName(0, d.owner.Run, savingSuffix))
		mark = filepath.Join(dir, rand.Text())
		defer func() { _ = vfs.RemoveAll(fsys, dir) }() // what is left goes next time
		if err = fsys.MkdirAll(dir, 0o775); err == nil {
			err = vfs.WriteFileAtomic(fsys, mark, nil)
		}
	}
	if mark, _, err = h.exchange(mark, err, nil); err != nil {
		return err
	}
	if _, err = fsys.Stat(mark); err != nil {
		err = h.unseen(mark, err)
	}
	_, _, err = h.exchange("", err, nil)
	return err
}

// saved lists the files and extents of a checkpoint that a host has written.
type saved struct {
	Files   []File   `json:"files"`
	Extents []Extent `json:"extents"`
}

// collect has all hosts learn whether each has written what it has of the state: err is this one's error. It returns
// what each has written.
func (w *Writer) collect(err error) (all [][]byte, _ error) {
	h := w.hosts
	if h == nil {
		return nil, err
	}
	var mine []byte
	if err == nil && !h.Leads() {
		// Host 0 syncs the directory as well. That makes names durable which another host made only where both use the
		// file system through the same system.
		if err = w.fsys.SyncDir(w.hidden); err == nil {
			mine, err = json.Marshal(w.saved())
		}
	}
	_, all, err = h.exchange("", err, mine)
	return all, err
}

// mergeAll takes over what the other hosts have written: the writer then has all of the state.
func (w *Writer) mergeAll(all [][]byte) error {
	if w.hosts == nil {
		return nil
	}
	there, err := w.names()
	if err != nil {
		return err
	}
	for host, doc := range all {
		if host == w.hosts.Host {
			continue
		}
		if err := w.merge(w.hosts.Name(host), doc, there); err != nil {
			return err
		}
	}
	return w.missing(true)
}

// saved lists what this host has written, of extents those that are whole.
func (w *Writer) saved() (s saved) {
	for _, e := range w.extents {
		if e.todo == 0 {
			s.Extents = append(s.Extents, e.Extent)
		}
	}
	s.Files = w.files()
	return s
}

// names are the names of the files that this host sees in the save's directory.
func (w *Writer) names() (map[string]bool, error) {
	entries, err := w.fsys.ReadDir(w.hidden)
	there := make(map[string]bool, len(entries))
	for _, e := range entries {
		there[e.Name()] = true
	}
	return there, err
}

// merge takes over what another host has written; there are the files that this one sees. Manifest.check looks at the
// places of the pieces.
func (w *Writer) merge(host string, doc []byte, there map[string]bool) error {
	var s saved
	if err := json.Unmarshal(doc, &s); err != nil {
		return fmt.Errorf("what %s has written cannot be read: %w", host, err)
	}
	for _, f := range s.Files {
		if _, twice := w.lengths[f.Name]; twice {
			return fmt.Errorf("%s and another host have both written the file %s", host, quote(f.Name))
		}
		if !there[f.Name] {
			return fmt.Errorf("the file %s, which %s has written in %s, is not there: %s", quote(f.Name), host,
				w.hidden, mustShare)
		}
		w.lengths[f.Name] = f.Bytes
	}
	for _, x := range s.Extents {
		e := w.byID[x.ID]
		switch {
		case e == nil || e.Spec != x.Spec:
			return fmt.Errorf("%s has written %v, which host 0 does not have, or not with this length: all hosts must "+
				"run the same version with the same run file", host, x.ID)
		case e.todo < e.Bytes:
			return fmt.Errorf("%s and another host have both written %v", host, x.ID)
		}
		e.Pieces, e.todo = x.Pieces, 0
	}
	return nil
}

// announce has all hosts learn the path of the checkpoint, or why host 0 could not complete it.
func (h *Hosts) announce(dir string, err error) (string, error) {
	if h == nil {
		return dir, err
	}
	path, _, errAny := h.exchange(dir, err, nil)
	if h.Leads() && h.lost != nil {
		return dir, err // which the others may not have heard
	}
	return path, errAny
}
