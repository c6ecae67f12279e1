package checkpoint

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/vfs"
)

func TestHardLinks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), root)
	r := start(t, vfs.OS{}, dir, 1)
	for i := range moments.Pieces() {
		a, err := os.Stat(filepath.Join(r.pool, fmt.Sprint("version-", moments.Pieces()-i))) // saved from the last on
		must(t, err)
		b, err := os.Stat(filepath.Join(dir, "step-000001", moments.pieceName(i)))
		must(t, err)
		if !os.SameFile(a, b) {
			t.Errorf("piece %d was copied", i)
		}
	}
}

func TestLinkAcrossFileSystems(t *testing.T) {
	const other = "/dev/shm"
	dir := t.TempDir()
	probe, err := os.CreateTemp(other, "millrace-test-")
	if err != nil {
		t.Skipf("there is no second file system at %s: %v", other, err)
	}
	defer os.Remove(probe.Name())
	defer probe.Close()
	if os.Link(probe.Name(), filepath.Join(dir, "probe")) == nil {
		t.Skipf("%s is on the same file system as %s", other, dir)
	}
	pool, err := os.MkdirTemp(other, "millrace-test-")
	must(t, err)
	defer os.RemoveAll(pool)
	r := start(t, vfs.OS{}, filepath.Join(dir, root))
	r.pool = pool
	w, err := r.Create(1, specs)
	must(t, err)
	must(t, r.fill(w, 1))
	if w.Linked() != 0 {
		t.Errorf("%d bytes were linked across file systems", w.Linked())
	}
	got, err := w.Commit(manifestOf(1))
	must(t, err)
	c, err := Open(vfs.OS{}, got)
	must(t, err)
	must(t, whole(c))
}

func TestTwoRunsOnOneDirectory(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("no locks on this system")
	}
	dir := filepath.Join(t.TempDir(), root)
	one := start(t, vfs.OS{}, dir, 1)
	must(t, os.Mkdir(filepath.Join(dir, hiddenName(2, ours.Run, savingSuffix)), 0o777))
	_, err := acquire(vfs.OS{}, dir)
	want := fmt.Sprintf("%s/.lock is held by another run (process %d on ", dir, os.Getpid())
	if err == nil || !strings.Contains(err.Error(), want) || !strings.HasSuffix(err.Error(), "wait until it has ended, or set another output_dir") {
		t.Errorf("error %v, want %s", err, want)
	}
	// The one that was refused has not touched what the other is saving.
	if got := names(t, vfs.OS{}, dir); len(got) != 2 {
		t.Errorf("the directory holds %q", got)
	}
	// Reading needs no lock.
	if c, _, err := Latest(vfs.OS{}, dir); err != nil || whole(c) != nil {
		t.Errorf("latest: %v", err)
	}
	must(t, one.Close())
	two, err := acquire(vfs.OS{}, dir)
	must(t, err)
	must(t, two.Close())
}

func TestReadOnlyDirectory(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("the superuser may write anywhere")
	}
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o555))
	_, err := Acquire(vfs.OS{}, filepath.Join(dir, "x"), ours)
	if err == nil || !strings.HasSuffix(err.Error(), "set output_dir to a directory that can be written") {
		t.Errorf("error %v", err)
	}
}

// victimEnv has this test binary save into the directory that it names, until it is killed.
const victimEnv = "MILLRACE_TEST_CHECKPOINT_VICTIM"

// victim continues from the latest checkpoint and saves, prunes and saves; it prints each step that was saved.
func victim(dir string) int {
	fail := func(err error) int {
		fmt.Println("failed:", err)
		return 1
	}
	r, err := acquire(vfs.OS{}, dir)
	if err != nil {
		return fail(err)
	}
	c, broken, err := Latest(vfs.OS{}, dir)
	if err != nil || len(broken) > 0 {
		return fail(fmt.Errorf("%v %v", err, broken))
	}
	step := 0
	if c != nil {
		step = c.Manifest.Step
		if err := whole(c); err != nil {
			return fail(err)
		}
	}
	fmt.Println("resumed", step)
	for {
		step++
		if _, err := r.save(step); err != nil {
			return fail(err)
		}
		fmt.Println("saved", step)
		if _, err := r.prune(step, 2, -1); err != nil {
			return fail(err)
		}
		if err := os.RemoveAll(r.pool); err != nil {
			return fail(err)
		}
	}
}

// A process that saves without end is killed at random moments, again and again; the next one finds what the last one
// had saved.
func TestKill(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no kill -9")
	}
	rounds := 50
	if testing.Short() {
		rounds = 10
	}
	self, err := os.Executable()
	must(t, err)
	dir := filepath.Join(t.TempDir(), root)
	saved := 0
	for round := range rounds {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), victimEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		// A moment after some saves, or after the start.
		lines := bufio.NewScanner(out)
		read := func() bool {
			if !lines.Scan() {
				return false
			}
			if strings.Contains(lines.Text(), "failed") {
				t.Fatalf("round %d: %s", round, lines.Text())
			}
			fmt.Sscanf(lines.Text(), "saved %d", &saved)
			return true
		}
		for more := round % 5; more > 0 && read(); more-- {
		}
		time.Sleep(time.Duration(rand.Int64N(int64(20 * time.Millisecond))))
		must(t, cmd.Process.Kill())
		for read() {
		}
		if err := cmd.Wait(); err == nil {
			t.Fatalf("round %d: it ended by itself", round)
		}
		c, broken, err := Latest(vfs.OS{}, dir)
		must(t, err)
		if len(broken) > 0 || saved > 0 && (c == nil || c.Manifest.Step < saved) {
			t.Fatalf("round %d: step %d was saved; broken: %v", round, saved, broken)
		}
		if c != nil {
			if err := whole(c); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
	}
	if saved == 0 {
		t.Errorf("nothing was saved in %d rounds", rounds)
	}
	t.Logf("%d rounds, %d steps saved", rounds, saved)
}
