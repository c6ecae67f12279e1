// Command tokenizer measures how fast text becomes ids, in one run beside the `tokenizers` package of PyPI, one thread each, in
// turns, and prints a markdown table. Rates are per second of CPU time. In the first round both sides see the words for the first time.
//
//	go run ./benchmarks/tokenizer -vocabularies DIR -python PYTHON TEXT...
//
// DIR has a directory with a tokenizer.json for each tokenizer; data/tokenizer/reference.sh makes one. Without it the program
// measures only the small tokenizer of the tests, and without -python only its own side.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/data/tokenizer"
)

func main() {
	vocabularies := flag.String("vocabularies", "", "directory of directories with a tokenizer.json")
	python := flag.String("python", "", "Python with the tokenizers package; without it only this program's side is measured")
	rounds := flag.Int("rounds", 5, "rounds; each runs both sides once")
	flag.Parse()
	if err := run(*vocabularies, *python, flag.Args(), *rounds); err != nil {
		log.Fatal(err)
	}
}

func run(vocabularies, python string, paths []string, rounds int) error {
	runtime.GOMAXPROCS(1)
	files, err := filepath.Glob(filepath.Join(vocabularies, "*", "tokenizer.json"))
	if err != nil {
		return err
	}
	if vocabularies == "" || len(files) == 0 {
		fmt.Println("no vocabularies: only the small tokenizer of the tests (see -help)")
		files = []string{"data/tokenizer/testdata/llama3.json"}
	}
	if len(paths) == 0 {
		paths = []string{"data/tokenizer/load.go", "ARCHITECTURE.md"}
	}
	docs, size, err := documents(paths)
	if err != nil {
		return err
	}
	fmt.Printf("%d documents, %.1f MB, %d rounds, one thread\n\n", len(docs), float64(size)/1e6, rounds)
	fmt.Println("| tokenizer | ids | ours MB/s | tokenizers MB/s | ratio | first round: ours | tokenizers |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, file := range files {
		if err := compare(file, python, docs, size, rounds); err != nil {
			return err
		}
	}
	return nil
}

// documents reads the texts: the lines of .jsonl files, and other files in pieces of about 4 KB that end with a line.
func documents(paths []string) (docs []string, size int, err error) {
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, 0, err
		}
		doc := ""
		for line := range strings.Lines(string(data)) {
			doc += line
			if strings.HasSuffix(path, ".jsonl") || len(doc) > 4096 {
				docs, doc = append(docs, doc), ""
			}
		}
		docs = append(docs, doc)
		size += len(data)
	}
	return docs, size, nil
}

func compare(file, python string, docs []string, size, rounds int) error {
	spec, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	tok, err := tokenizer.Parse(spec)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	var other *peer
	if python != "" {
		if other, err = startPeer(python, file, docs); err != nil {
			return err
		}
		defer other.stop()
	}
	var ours, theirs, ratios []float64
	count := 0
	var ids []int32
	for range rounds {
		count = 0
		start := cpuTime()
		for _, doc := range docs {
			ids = tok.AppendEncode(ids[:0], doc, false)
			count += len(ids)
		}
		rate := float64(size) / 1e6 / (cpuTime() - start).Seconds()
		ours = append(ours, rate)
		if other == nil {
			continue
		}
		seconds, n, err := other.round()
		if err != nil {
			return err
		}
		if n != count {
			return fmt.Errorf("%s: %d ids, tokenizers has %d", file, count, n)
		}
		theirs = append(theirs, float64(size)/1e6/seconds)
		ratios = append(ratios, rate*seconds/(float64(size)/1e6))
	}
	name := filepath.Base(filepath.Dir(file))
	if other == nil {
		fmt.Printf("| %s | %d | %.1f | | | %.1f | |\n", name, count, median(slices.Clone(ours)), ours[0])
		return nil
	}
	cold, coldPeer := ours[0], theirs[0]
	fmt.Printf("| %s | %d | %.1f | %.1f | %.2f | %.1f | %.1f |\n", name, count, median(ours), median(theirs), median(ratios), cold, coldPeer)
	return nil
}

// cpuTime is the time that all threads of the process have run, so that other programs on the machine do not count.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// peer is the Python side: it reads a line of JSON with the documents, and for each further line encodes all of them and answers
// with the seconds and the count of ids.
type peer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

const peerProgram = `
import json, sys, time, tokenizers
tok = tokenizers.Tokenizer.from_file(sys.argv[1])
docs = json.loads(sys.stdin.readline())
for _ in sys.stdin:
    start = time.process_time()
    batch = tok.encode_batch_fast(docs, add_special_tokens=False)
    seconds = time.process_time() - start
    print(json.dumps([seconds, sum(len(e) for e in batch)]), flush=True)
`

func startPeer(python, file string, docs []string) (*peer, error) {
	p := &peer{cmd: exec.Command(python, "-c", peerProgram, file)}
	p.cmd.Env = append(os.Environ(), "RAYON_NUM_THREADS=1", "TOKENIZERS_PARALLELISM=false")
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	return p, json.NewEncoder(p.in).Encode(docs)
}

func (p *peer) round() (seconds float64, ids int, err error) {
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		return 0, 0, err
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return 0, 0, fmt.Errorf("the Python side: %w", err)
	}
	var answer [2]float64
	err = json.Unmarshal([]byte(line), &answer)
	return answer[0], int(answer[1]), err
}

func (p *peer) stop() {
	p.in.Close()
	p.cmd.Wait()
}
