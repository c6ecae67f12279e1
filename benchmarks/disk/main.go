// Command disk compares how fast the disk tier and fio read and write on the same file system, in one interleaved run,
// and prints a markdown table. The tier works as in training: pieces go through staging buffers before and after one
// lane, each version is a file of its own, and every byte is hashed when it is written and verified when it is read.
//
// fio reads and writes one file that was allocated before, with direct I/O, from huge pages. Both end a pass of writes
// with a sync.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/benchmarks/internal/harness"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/trace"
)

func main() {
	dir := flag.String("dir", os.TempDir(), "a directory on the file system to measure")
	bytes := flag.Int64("bytes", 2<<30, "bytes that a pass reads or writes")
	rounds := flag.Int("rounds", 5, "rounds; each runs everything once")
	piece := flag.Int64("piece", 16<<20, "bytes of a piece")
	workers := flag.Int("workers", 4, "pieces that the tier reads or writes at once")
	depth := flag.Int("depth", 16, "fio's iodepth")
	block := flag.String("block", "1M", "fio's bs")
	flag.Parse()
	if err := run(*dir, *bytes, *rounds, *piece, *workers, *depth, *block); err != nil {
		log.Fatal(err)
	}
}

// contender is one row of the table.
type contender struct {
	name  string
	pass  func() (bytesPerSec float64, err error)
	rates harness.Series // bytes per second
}

func run(dir string, bytes int64, rounds int, piece int64, workers, depth int, block string) error {
	dir, err := os.MkdirTemp(dir, "millrace-disk-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	spec := store.Spec{ID: store.ID{Kind: store.SecondMoment}, Bytes: bytes, Piece: piece}
	var quota store.Quota
	quota[trace.Update][spec.Kind] = 1 + 2*workers
	d, err := store.NewDisk(store.DiskOptions{
		Drives: []store.Drive{{Dir: filepath.Join(dir, "state")}}, Accounts: hostmem.New(),
		Specs: []store.Spec{spec}, Quota: quota, Workers: workers})
	if err != nil {
		return err
	}
	defer d.Close()
	tier := &tier{d, spec, 2 * workers, 0, rand.NewPCG(1, 2)}
	fio := func(rw string) func() (float64, error) {
		return func() (float64, error) { return runFio(filepath.Join(dir, "fio"), rw, block, bytes, depth) }
	}
	contenders := []*contender{
		{name: "fio, write", pass: fio("write")}, {name: "disk tier, write", pass: tier.write},
		{name: "fio, read", pass: fio("read")}, {name: "disk tier, read", pass: tier.read},
	}
	if _, err := exec.LookPath("fio"); err != nil {
		log.Print("fio is not installed (apt-get install fio): the tier is measured alone")
		contenders = []*contender{contenders[1], contenders[3]}
	}
	// The first pass turns reserved space into written space, for both.
	for _, c := range contenders[:len(contenders)/2] {
		if _, err := c.pass(); err != nil {
			return err
		}
	}
	for range rounds {
		for _, c := range contenders {
			rate, err := c.pass()
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			c.rates = append(c.rates, rate)
		}
	}
	fmt.Printf("%.1f GiB a pass, pieces of %d MiB, %d workers; fio: bs=%s iodepth=%d; %d rounds\n\n",
		float64(bytes)/(1<<30), piece>>20, workers, block, depth, rounds)
	harness.Head("| | MB/s, median | from | to | ratio to fio, median of rounds |")
	for i, c := range contenders {
		ratio := ""
		if i%2 == 1 && len(contenders) == 4 {
			ratio = fmt.Sprintf("%.2f", c.rates.Over(contenders[i-1].rates).Median())
		}
		fmt.Printf("| %s | %.0f | %.0f | %.0f | %s |\n", c.name, c.rates.Median()/1e6, slices.Min(c.rates)/1e6,
			slices.Max(c.rates)/1e6, ratio)
	}
	return nil
}

// tier is a disk with one extent, which one lane reads and writes in order.
type tier struct {
	*store.Disk
	store.Spec
	ahead   int // pieces
	version uint64
	random  *rand.PCG
}

func (t *tier) write() (float64, error) {
	start := time.Now()
	for off, n := range t.Pieces() {
		if err := t.visit(off, n, store.Write); err != nil {
			return 0, err
		}
	}
	t.version++
	err := t.Sync(context.Background())
	return float64(t.Spec.Bytes) / time.Since(start).Seconds(), err
}

func (t *tier) read() (float64, error) {
	before := t.Traffic().ReadBytes
	start := time.Now()
	for off := range t.Pieces() {
		if off >= int64(t.ahead)*t.Piece {
			break
		}
		t.Prefetch(trace.Update.Of(0), t.ID, off, t.version)
	}
	for off, n := range t.Pieces() {
		if err := t.visit(off, n, store.Read); err != nil {
			return 0, err
		}
		if next := off + int64(t.ahead)*t.Piece; next < t.Spec.Bytes {
			t.Prefetch(trace.Update.Of(0), t.ID, next, t.version)
		}
	}
	// The last pieces of the pass before may still be in memory.
	return float64(t.Traffic().ReadBytes-before) / time.Since(start).Seconds(), nil
}

func (t *tier) visit(off, n int64, access store.Access) error {
	l, err := t.Borrow(context.Background(), trace.Update.Of(0), t.ID, off, n, access, t.version)
	if err != nil {
		return err
	}
	if access == store.Write {
		t.fill(l.Bytes())
	}
	l.Release()
	return nil
}

// fill makes contents that no block of an earlier pass had, since drives and virtual disks are quicker with zeros and
// with contents that they know. The first pass fills the buffers with random bytes; later passes change each block of
// them.
func (t *tier) fill(b []byte) {
	if t.version == 0 {
		for i := 0; i+8 <= len(b); i += 8 {
			binary.NativeEndian.PutUint64(b[i:], t.random.Uint64())
		}
		return
	}
	for i := 0; i+8 <= len(b); i += 512 {
		binary.NativeEndian.PutUint64(b[i:], t.random.Uint64())
	}
}

func runFio(file, rw, block string, bytes int64, depth int) (float64, error) {
	cmd := exec.Command("fio", "--name=x", "--filename="+file, "--rw="+rw, "--bs="+block,
		"--size="+strconv.FormatInt(bytes, 10), "--iodepth="+strconv.Itoa(depth), "--ioengine=libaio", "--direct=1",
		"--overwrite=1", "--end_fsync=1", "--mem=malloc", "--output-format=json")
	cmd.Env = append(os.Environ(), "GLIBC_TUNABLES=glibc.malloc.hugetlb=1") // huge pages, as the tier has them
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("fio: %w", err)
	}
	var report struct {
		Jobs []map[string]json.RawMessage `json:"jobs"`
	}
	text := string(out)
	if err := json.Unmarshal([]byte(text[max(strings.IndexByte(text, '{'), 0):]), &report); err != nil || len(report.Jobs) != 1 {
		return 0, fmt.Errorf("fio printed no report: %w", err)
	}
	var side struct {
		BytesPerSec float64 `json:"bw_bytes"`
	}
	err = json.Unmarshal(report.Jobs[0][rw], &side)
	return side.BytesPerSec, err
}
