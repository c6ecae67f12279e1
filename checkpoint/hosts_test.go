package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/vfs"
)

// meeting passes messages between the hosts of a test.
type meeting struct {
	mu    sync.Mutex
	came  sync.Cond // that a round is over, or a host gone
	said  [][]byte  // in this round, by host; nil: nothing yet
	last  [][]byte  // in the round before
	round int
	gone  error // the first host that is
}

func newMeeting(hosts int) *meeting {
	m := &meeting{said: make([][]byte, hosts)}
	m.came.L = &m.mu
	return m
}

// exchange is Hosts.Exchange of a host.
func (m *meeting) exchange(host int, b []byte) ([][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	round := m.round
	m.said[host] = bytes.Clone(b)
	if !slices.ContainsFunc(m.said, func(b []byte) bool { return b == nil }) {
		m.last, m.said, m.round = m.said, make([][]byte, len(m.said)), round+1
		m.came.Broadcast()
		return m.last, nil
	}
	for m.round == round && m.gone == nil {
		m.came.Wait()
	}
	if m.round > round {
		return m.last, nil
	}
	return nil, m.gone
}

// end is the end of a host: who waits for it gets an error.
func (m *meeting) end(host int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone == nil {
		m.gone = fmt.Errorf("host %d is silent", host)
	}
	m.came.Broadcast()
}

// cluster are hosts that save together.
type cluster struct {
	runs []*run // by host; only that of host 0 has a directory
	dead []atomic.Bool
}

// newCluster makes hosts with a file system each, of which the first one has the run's directory.
func newCluster(t testing.TB, dir string, fsys ...vfs.FS) *cluster {
	t.Helper()
	c := &cluster{dead: make([]atomic.Bool, len(fsys))}
	for host, f := range fsys {
		r := &run{fsys: f}
		if host == 0 {
			r = start(t, f, dir)
		}
		r.pool = filepath.Join(filepath.Dir(dir), fmt.Sprint("pool-", host))
		must(t, vfs.RemoveAll(f, r.pool))
		c.runs = append(c.runs, r)
	}
	return c
}

// each has all hosts do the same, and returns what each of them comes to. One that is dead takes part in no exchange.
func (c *cluster) each(f func(host int, h *Hosts) (string, error)) (dirs []string, errs []error) {
	m := newMeeting(len(c.runs))
	dirs, errs = make([]string, len(c.runs)), make([]error, len(c.runs))
	var all sync.WaitGroup
	for host := range c.runs {
		h := &Hosts{Host: host, Name: func(host int) string { return fmt.Sprintf("host %d", host) }, most: 200}
		h.Exchange = func(b []byte) ([][]byte, error) {
			switch _, rest, _ := bytes.Cut(b, []byte("\n")); {
			case c.dead[host].Load():
				return nil, errors.New("killed")
			case h.most > 0 && len(rest) > h.most:
				return nil, fmt.Errorf("%d bytes of a list at once", len(rest))
			}
			return m.exchange(host, b)
		}
		all.Go(func() {
			defer m.end(host)
			dirs[host], errs[host] = f(host, h)
		})
	}
	all.Wait()
	return dirs, errs
}

// save saves a step on all hosts, each of which has every n-th extent.
func (c *cluster) save(step int) (dirs []string, errs []error) {
	return c.each(func(host int, h *Hosts) (string, error) {
		w, err := c.create(host, h, step)
		if err != nil {
			return "", err
		}
		defer w.Abort()
		for i, s := range specs {
			if i%len(c.runs) != host {
				continue
			}
			if err := c.runs[host].add(w, step, s); err != nil {
				w.Fail(err)
			}
		}
		return w.Commit(manifestOf(step))
	})
}

func (c *cluster) create(host int, h *Hosts, step int) (*Writer, error) {
	return h.Create(c.runs[host].fsys, step, specs, func() (*Writer, error) {
		w, err := c.runs[0].Create(step, specs)
		if err != nil {
			return nil, err
		}
		if err := w.Attach("config.json", []byte(configText)); err != nil {
			w.Abort()
			return nil, err
		}
		return w, nil
	})
}

// saveAll saves a step, and is an error unless it is saved on all hosts.
func (c *cluster) saveAll(step int) error {
	dirs, errs := c.save(step)
	for host := range dirs {
		if errs[host] != nil {
			return errs[host]
		}
		if want := filepath.Join(c.runs[0].path, DirName(step)); dirs[host] != want {
			return fmt.Errorf("host %d saved %s, want %s", host, dirs[host], want)
		}
	}
	return nil
}

// on is a file system, n times.
func on(fsys vfs.FS, n int) []vfs.FS { return slices.Repeat([]vfs.FS{fsys}, n) }

// clusterOn makes a cluster of hosts that share memory with two checkpoints, one of them by way of a drive that can
// fail.
func clusterOn(t *testing.T, hosts, failing int) (c *cluster, m *vfs.Mem, drive *vfs.Faulty) {
	t.Helper()
	m = vfs.NewMem()
	must(t, start(t, m, root, 1, 2).Close())
	fsys := on(m, hosts)
	drive = vfs.NewFaulty(m)
	fsys[failing] = drive
	return newCluster(t, root, fsys...), m, drive
}

// sound fails unless the directory has nothing but whole checkpoints, and the latest one is of a step of those.
func sound(t *testing.T, fsys vfs.FS, at string, latest ...int) {
	t.Helper()
	r, err := acquire(fsys, root)
	must(t, err)
	entries, err := List(fsys, root)
	must(t, err)
	for _, e := range entries {
		c, err := Open(fsys, e.Dir)
		must(t, err)
		if err := whole(c); err != nil {
			t.Fatalf("%s: %v", at, err)
		}
	}
	if len(entries) == 0 || !slices.Contains(latest, entries[0].Step) || len(names(t, fsys, root)) != len(entries) {
		t.Fatalf("%s: left are %q, want the latest to be one of %v", at, names(t, fsys, root), latest)
	}
	must(t, r.Close())
}

// The files of a checkpoint, manifest included, are the same to the byte, whichever host has written each of them.
func TestHostsWriteTheSameBytes(t *testing.T) {
	onBoth(t, func(t *testing.T, fsys vfs.FS, dir string) {
		contentsOf := func(dir string) map[string]string {
			all := map[string]string{}
			for _, name := range names(t, fsys, dir) {
				data, err := vfs.ReadFile(fsys, filepath.Join(dir, name), 1<<20)
				must(t, err)
				all[name] = string(data)
			}
			return all
		}
		want, err := start(t, fsys, dir).save(7)
		must(t, err)
		for hosts := 1; hosts <= len(specs)+1; hosts++ { // the last of them has nothing
			dir := filepath.Join(filepath.Dir(dir), fmt.Sprint("checkpoints-", hosts))
			c := newCluster(t, dir, on(fsys, hosts)...)
			must(t, c.saveAll(7))
			must(t, c.saveAll(7)) // it replaces the other
			at := filepath.Join(dir, DirName(7))
			got, one := contentsOf(at), contentsOf(want)
			for name := range one {
				if got[name] != one[name] {
					t.Errorf("%d hosts: %s has other bytes", hosts, name)
				}
			}
			if len(got) != len(one) || !slices.Equal(names(t, fsys, dir), []string{DirName(7)}) {
				t.Errorf("%d hosts: files %q in %q", hosts, names(t, fsys, at), names(t, fsys, dir))
			}
			saved, err := Open(fsys, at)
			must(t, err)
			must(t, whole(saved))
		}
	})
}

// Every operation of a save fails on each host in turn, once or from then on: either all hosts have saved it or none,
// with the same words, and a later run has no trace of a save that failed.
func TestFaultsOfHosts(t *testing.T) {
	// See TestFaults.
	silent := map[vfs.OpKind]bool{vfs.OpClose: true, vfs.OpRemove: true, vfs.OpReadDir: true, vfs.OpStat: true}
	const hosts = 3
	for host := range hosts {
		for how, fault := range map[string]func(int, error) func(vfs.Op) vfs.Outcome{
			"once": vfs.FailNth, "from then on": vfs.FailFrom,
		} {
			failures := 0
			for n := 1; ; n++ {
				c, m, drive := clusterOn(t, hosts, host)
				before, hit := drive.Ops(), vfs.OpKind(0)
				inject := fault(before+n, syscall.ENOSPC)
				drive.Intercept(func(op vfs.Op) vfs.Outcome {
					if strings.HasPrefix(op.Name, c.runs[host].pool) {
						return vfs.Outcome{}
					}
					if op.N == before+n {
						hit = op.Kind
					}
					return inject(op)
				})
				_, errs := c.save(3)
				drive.Intercept(nil)
				if drive.Ops()-before < n {
					must(t, errors.Join(errs...))
					break
				}
				at := fmt.Sprintf("operation %d (%v) of host %d failed %s", n, hit, host, how)
				own := errs[host]
				switch {
				case own == nil && hit != 0 && !silent[hit]:
					t.Fatalf("%s: no error", at)
				case own != nil && (!errors.Is(own, syscall.ENOSPC) || strings.Contains(own.Error(), "\n") ||
					strings.Count(own.Error(), fix(syscall.ENOSPC)) != 1):
					t.Fatalf("%s: error %q", at, own)
				}
				for other, err := range errs {
					// An error of host 0 may be its own in Create; the others add whose it is.
					if (err == nil) != (own == nil) || err != nil && other != host && (!strings.Contains(err.Error(),
						fmt.Sprintf("host %d: ", host)) || !strings.Contains(err.Error(), syscall.ENOSPC.Error())) {
						t.Fatalf("%s: error %v on host %d", at, err, other)
					}
				}
				must(t, c.runs[0].Close())
				switch {
				case own == nil:
					sound(t, m, at, 3)
				case host == 0 && how != "once": // it cannot take the name away again
					failures++
					sound(t, m, at, 2, 3)
				default:
					failures++
					sound(t, m, at, 2)
				}
				later := newCluster(t, root, on(m, hosts)...)
				must(t, later.saveAll(4))
				must(t, later.runs[0].Close())
				sound(t, m, at, 4)
			}
			if failures < 4 {
				t.Errorf("host %d, %s: %d failures", host, how, failures)
			}
		}
	}
}

// Each host is killed before each of its operations and exchanges: the others end, and the next run finds whole
// checkpoints alone, and the new one if any host was told that it is there.
func TestKilledHosts(t *testing.T) {
	const hosts = 3
	for host := range hosts {
		ended := map[bool]int{}
		for n := 1; ; n++ {
			c, m, drive := clusterOn(t, hosts, host)
			before := drive.Ops()
			inject := vfs.FailFrom(before+n, syscall.EIO)
			drive.Intercept(func(op vfs.Op) vfs.Outcome {
				if op.N >= before+n {
					c.dead[host].Store(true)
				}
				return inject(op)
			})
			_, errs := c.save(3)
			drive.Intercept(nil)
			if drive.Ops()-before < n {
				must(t, errors.Join(errs...))
				break
			}
			at, isThere := fmt.Sprintf("host %d was killed before operation %d", host, n), false
			for other, err := range errs {
				isThere = isThere || other != host && err == nil
			}
			must(t, c.runs[0].Close())
			if ended[isThere]++; isThere {
				sound(t, m, at, 3)
			} else {
				sound(t, m, at, 2, 3)
			}
		}
		if ended[false] < 4 {
			t.Errorf("host %d: ends %v", host, ended)
		}
	}
}

// A host that stops in an exchange ends those that wait for it, also if host 0 has completed the checkpoint by then;
// that is there, and host 0 says so. No later save begins.
func TestHostsLostInTheLastExchange(t *testing.T) {
	m := vfs.NewMem()
	c := newCluster(t, root, on(m, 3)...)
	exchanges := 0
	_, errs := c.each(func(host int, h *Hosts) (string, error) {
		h.most = 0 // a list is in one exchange
		if exchange := h.Exchange; host == 2 {
			h.Exchange = func(b []byte) ([][]byte, error) {
				if exchanges++; exchanges == 3 {
					return nil, errors.New("killed")
				}
				return exchange(b)
			}
		}
		w, err := c.create(host, h, 1)
		if err != nil {
			return "", err
		}
		for i, s := range specs {
			if i%len(c.runs) == host {
				must(t, c.runs[host].add(w, 1, s))
			}
		}
		dir, err := w.Commit(manifestOf(1))
		if _, again := c.create(host, h, 2); again == nil || again != h.Lost() {
			t.Errorf("host %d: error %v of the next save, and %v is lost", host, again, h.Lost())
		}
		return dir, err
	})
	const want = "the checkpoint of step 1 was not saved: host 2 is silent"
	if errs[0] != nil || errs[1] == nil || errs[1].Error() != want {
		t.Errorf("errors %v", errs)
	}
	must(t, c.runs[0].Close())
	sound(t, m, "lost", 1)
}

// A host that outlives the process of host 0 does no harm to the next one, also where that saves the same step.
func TestHostOfAnEarlierProcess(t *testing.T) {
	onBoth(t, func(t *testing.T, fsys vfs.FS, dir string) {
		before := newCluster(t, dir, fsys, fsys)
		var left [2]*Writer
		before.each(func(host int, h *Hosts) (_ string, err error) {
			left[host], err = before.create(host, h, 3)
			return "", err
		})
		must(t, left[1].Add(weights.ID, 0, contents(weights, 1)[:40]))
		must(t, before.runs[0].Close())
		now := newCluster(t, dir, fsys, fsys)
		_, errs := now.each(func(host int, h *Hosts) (string, error) {
			w, err := now.create(host, h, 3)
			must(t, err)
			for i, s := range specs {
				if i%2 == host {
					must(t, now.runs[host].add(w, 3, s))
				}
			}
			if host == 0 { // it has not committed: the other one writes into its own directory, or nowhere
				_ = left[1].Add(weights.ID, 1, contents(weights, 1)[40:80])
				if err := left[1].Add(norm.ID, 0, contents(norm, 1)); err == nil {
					t.Error("a directory is there that was removed")
				}
			}
			return w.Commit(manifestOf(3))
		})
		must(t, errors.Join(errs...))
		c, err := Open(fsys, filepath.Join(dir, DirName(3)))
		must(t, err)
		must(t, whole(c))
		if got := names(t, fsys, dir); !slices.Equal(got, []string{DirName(3)}) {
			t.Errorf("left are %q", got)
		}
	})
}

// A host syncs the names of its files before host 0 hears of them: on some file systems no other host can do that for
// it. It makes, renames and removes no directory.
func TestHostsSyncWhatTheyName(t *testing.T) {
	m := vfs.NewMem()
	drive := vfs.NewFaulty(m)
	c := newCluster(t, root, m, drive)
	var ops []string
	drive.Intercept(func(op vfs.Op) vfs.Outcome {
		if strings.Contains(op.Name, savingSuffix) {
			ops = append(ops, op.Kind.String()+" "+filepath.Base(op.Name))
		}
		return vfs.Outcome{}
	})
	must(t, c.saveAll(1))
	if len(ops) == 0 || !strings.HasPrefix(ops[len(ops)-1], "syncdir .step-000001.00112233.") {
		t.Errorf("operations %q", ops)
	}
	for _, op := range ops {
		kind, _, _ := strings.Cut(op, " ")
		if slices.Contains([]string{"rename", "remove", "mkdir"}, kind) {
			t.Errorf("host 1 does %s", op)
		}
	}
}

// Hosts that do not see the same directory are told so, at the start as in a save.
func TestHostsWithoutASharedDirectory(t *testing.T) {
	shared, own := vfs.NewMem(), vfs.NewMem()
	const why = "output_dir, and save.fallback, must be in a file system that all hosts share, under the same path"
	c := newCluster(t, root, shared, shared, own)
	_, errs := c.each(func(host int, h *Hosts) (string, error) {
		return "", h.CheckShared(c.runs[host].fsys, c.runs[host].Directory)
	})
	for host, err := range errs {
		if err == nil || !strings.HasPrefix(err.Error(), "host 2: "+root+"/.step-000000.00112233.tmp/") ||
			!strings.HasSuffix(err.Error(), ", which host 0 has made, is not there: "+why) {
			t.Errorf("host %d: error %v", host, err)
		}
	}
	dirs, errs := c.save(1)
	for host, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "host 2: "+root+"/.step-000001.00112233.") ||
			!strings.HasSuffix(err.Error(), ".tmp, which host 0 has made, is not there: "+why) {
			t.Errorf("host %d: %s, error %v", host, dirs[host], err)
		}
	}
	_, errs = c.each(func(host int, h *Hosts) (string, error) {
		w, err := c.create(host, h, 3)
		if err != nil {
			return "", err
		}
		defer w.Abort()
		if host == 2 { // as if it had the directory, and lost it again
			w.cause, w.err = nil, nil
			must(t, own.MkdirAll(w.hidden, 0o777))
			must(t, c.runs[host].add(w, 3, norm))
		}
		return w.Commit(manifestOf(3))
	})
	for host, err := range errs {
		if err == nil || !strings.Contains(err.Error(), `the file "norm.weights", which host 2 has written in `) ||
			!strings.HasSuffix(err.Error(), " is not there: "+why) {
			t.Errorf("host %d: error %v", host, err)
		}
	}
	c.runs[2].fsys = shared
	_, errs = c.each(func(host int, h *Hosts) (string, error) {
		return "", h.CheckShared(c.runs[host].fsys, c.runs[host].Directory)
	})
	must(t, errors.Join(errs...))
	must(t, c.saveAll(3))
	if got := names(t, shared, root); !slices.Equal(got, []string{DirName(3)}) {
		t.Errorf("left are %q", got)
	}
	must(t, (*Hosts)(nil).CheckShared(shared, c.runs[0].Directory))
	c = newCluster(t, root+"-failing", vfs.NewFaulty(shared), shared)
	c.runs[0].fsys.(*vfs.Faulty).Intercept(vfs.FailFrom(1, syscall.EIO))
	_, errs = c.each(func(host int, h *Hosts) (string, error) {
		return "", h.CheckShared(c.runs[host].fsys, c.runs[0].Directory)
	})
	if !errors.Is(errs[0], syscall.EIO) || errs[1] == nil {
		t.Errorf("errors %v", errs)
	}
}

// What hosts have written must be the extents that host 0 has, once each; else there is no checkpoint.
func TestHostsThatDoNotAgree(t *testing.T) {
	part, cut, dtype := norm, moments, norm
	part.Part, cut.PieceBytes, dtype.DType = "head", 100, tensor.F32
	for want, saves := range map[string][2][]Spec{ // by host
		"host 0: weights of norm are not complete: 0 of 16 bytes have come": {{weights, low}, {moments}},
		`host 1 and another host have both written the file "block.0.low-halves"`: {
			{weights, low, norm}, {moments, low}},
		"host 1 has written weights of head, which host 0 does not have": {
			{weights, low, norm}, {moments, part}},
		"host 1 has written first moments of block.0, which host 0 does not have, or not": {
			{weights, low, norm}, {cut}},
		"weights of norm, which host 0 does not have, or not with this length: all hosts ": {
			{weights, low}, {moments, dtype}},
	} {
		m := vfs.NewMem()
		c := newCluster(t, root, on(m, 2)...)
		_, errs := c.each(func(host int, h *Hosts) (string, error) {
			extents := specs
			if host == 1 {
				extents = saves[1]
			}
			w, err := h.Create(m, 1, extents, func() (*Writer, error) { return c.runs[0].Create(1, specs) })
			must(t, err)
			defer w.Abort()
			for _, s := range saves[host] {
				must(t, c.runs[host].add(w, 1, s))
			}
			return w.Commit(manifestOf(1))
		})
		for host, err := range errs {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("host %d: error %v, want %s", host, err, want)
			}
		}
		if got := names(t, m, root); len(got) > 0 {
			t.Errorf("%s: left are %q", want, got)
		}
	}
}

// An extent that a host has saved in part is an error of that host.
func TestPartOfAnExtentOnAHost(t *testing.T) {
	c := newCluster(t, root, on(vfs.NewMem(), 2)...)
	_, errs := c.each(func(host int, h *Hosts) (string, error) {
		w, err := c.create(host, h, 1)
		must(t, err)
		defer w.Abort()
		if host == 1 {
			must(t, w.Add(weights.ID, 0, contents(weights, 1)[:40]))
		}
		return w.Commit(manifestOf(1))
	})
	for host, err := range errs {
		const want = "host 1: weights of block.0 are not complete: 40 of 100 bytes have come"
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("host %d: error %v", host, err)
		}
	}
}

// An error of the caller fails the save on all hosts, and stays.
func TestFail(t *testing.T) {
	cause := errors.New("the store has failed")
	c := newCluster(t, root, on(vfs.NewMem(), 2)...)
	_, errs := c.each(func(host int, h *Hosts) (string, error) {
		w, err := c.create(host, h, 1)
		must(t, err)
		defer w.Abort()
		if host == 1 {
			w.Fail(cause)
			w.Fail(fs.ErrInvalid)
			if err := w.Add(weights.ID, 0, contents(weights, 1)[:40]); err == nil || err != w.Err() {
				t.Errorf("Add: error %v", err)
			}
		}
		return w.Commit(manifestOf(1))
	})
	for host, err := range errs {
		if err == nil || err.Error() != "the checkpoint of step 1 was not saved: host 1: the store has failed" ||
			errors.Is(err, cause) != (host == 1) {
			t.Errorf("host %d: error %v", host, err)
		}
	}
}

// No message of another host makes host 0 panic or write a manifest that is not one.
func FuzzHosts(f *testing.F) {
	const extent = `{"part":"norm","kind":"weights","dtype":"bf16","bytes":16,"piece_bytes":40,"pieces":[]}`
	for _, doc := range []string{"", "\n", "{}\n{}", `{"error":"x"}` + "\n",
		"{}\n" + `{"files":[{"name":"manifest.json","bytes":1}]}`, "{}\n" + `{"extents":[` + extent + `]}`,
		"{}\n" + `{"files":[{"name":"norm.weights","bytes":16}],"extents":[` + strings.Replace(extent, "[]",
			`[{"file":"norm.weights","offset":0,"bytes":16,"xxh3":"0000000000000000"}]`, 1) + `]}`} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		m := vfs.NewMem()
		r := start(t, m, root)
		w, err := r.Create(1, specs)
		must(t, err)
		must(t, vfs.WriteFileAtomic(m, filepath.Join(w.Dir(), "norm.weights"), contents(norm, 1)))
		w.hosts = &Hosts{Name: func(host int) string { return fmt.Sprint("host ", host) }}
		w.hosts.Exchange = func(b []byte) ([][]byte, error) { return [][]byte{b, doc}, nil }
		for _, s := range specs[:3] {
			must(t, r.add(w, 1, s))
		}
		if _, err := w.Commit(Manifest{}); err != nil {
			return
		}
		c, _, err := Latest(m, root)
		must(t, err)
		if c == nil {
			t.Fatal("there is no checkpoint")
		}
	})
}
