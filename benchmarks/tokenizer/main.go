// Command tokenizer compares how fast data/tokenizer and the `tokenizers` package of PyPI turn text into ids. They take
// turns in one run, with one thread each and with all. It prints a markdown table. Rates are per second of CPU time of
// all threads, so that other programs on the machine count little, and per second. In the first round both sides see
// the words for the first time.
//
//	go run ./benchmarks/tokenizer -vocabularies DIR -python PYTHON TEXT...
//
// DIR has a directory with a tokenizer.json for each tokenizer; data/tokenizer/reference.sh makes one. Without it the
// program measures only the small tokenizer of the tests, and without -python only its own side.
package main

import (
	"bufio"
	"context"
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

	"github.com/millrace/millrace/benchmarks/internal/harness"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/internal/fault"
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

// rates has the MB of text that each round turns into ids.
type rates struct{ perCPUSecond, perSecond harness.Series }

func (r *rates) add(megabytes, cpuSeconds, seconds float64) {
	r.perCPUSecond, r.perSecond = append(r.perCPUSecond, megabytes/cpuSeconds), append(r.perSecond, megabytes/seconds)
}

func run(vocabularies, python string, paths []string, rounds int) error {
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
	all := runtime.NumCPU()
	fmt.Printf("%d documents, %.1f MB, %d rounds; MB per second of CPU time, first round and median; "+
		"MB per second, median\n\n", len(docs), float64(size)/1e6, rounds)
	harness.Head("| tokenizer | ids | threads | ours, first | tokenizers | ours | tokenizers " +
		"| ratio | ours, MB/s | tokenizers |")
	for _, file := range files {
		for _, threads := range slices.Compact([]int{1, all}) {
			if err := compare(file, python, docs, size, rounds, threads); err != nil {
				return err
			}
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

func compare(file, python string, docs []string, size, rounds, threads int) error {
	spec, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	tok, err := tokenizer.Parse(spec) // parsed again, so that no word is known
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	runtime.GOMAXPROCS(threads)
	runtime.GC()
	var other *peer
	if python != "" {
		if other, err = startPeer(python, file, docs, threads); err != nil {
			return err
		}
		defer other.stop()
	}
	megabytes := float64(size) / 1e6
	var ours, theirs rates
	count := 0
	for range rounds {
		start, startCPU := time.Now(), harness.ProcessTime()
		ids := encodeAll(tok, docs, threads)
		ours.add(megabytes, (harness.ProcessTime() - startCPU).Seconds(), time.Since(start).Seconds())
		count = 0
		for _, doc := range ids {
			count += len(doc)
		}
		if other == nil {
			continue
		}
		cpu, seconds, n, err := other.round()
		if err != nil {
			return err
		}
		if n != count {
			return fmt.Errorf("%s: %d ids, tokenizers has %d", file, count, n)
		}
		theirs.add(megabytes, cpu, seconds)
	}
	cpu, wall := ours.perCPUSecond.Median(), ours.perSecond.Median()
	name := filepath.Base(filepath.Dir(file))
	if other == nil {
		fmt.Printf("| %s | %d | %d | %.1f | | %.1f | | | %.1f | |\n", name, count, threads, ours.perCPUSecond[0], cpu, wall)
		return nil
	}
	theirCPU, theirWall := theirs.perCPUSecond.Median(), theirs.perSecond.Median()
	fmt.Printf("| %s | %d | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f |\n", name, count, threads,
		ours.perCPUSecond[0], theirs.perCPUSecond[0], cpu, theirCPU, cpu/theirCPU, wall, theirWall)
	return nil
}

// encodeAll encodes many texts, workers of them at a time, and returns their ids in order.
func encodeAll(t tokenizer.Tokenizer, texts []string, workers int) [][]int32 {
	out := make([][]int32, len(texts))
	// Pieces are small enough to share the work out and large enough for a worker to stay with one cache of words.
	piece := max(1, min(64, len(texts)/(4*workers)))
	_ = fault.Share(context.Background(), (len(texts)+piece-1)/piece, workers, func(p int) error { // it cannot fail
		for i := p * piece; i < min((p+1)*piece, len(texts)); i++ {
			out[i] = t.Encode(texts[i], false)
		}
		return nil
	})
	return out
}

// peer is the Python side: it reads a line of JSON with the documents, and for each further line encodes all of them
// and answers with the seconds of CPU time, the seconds, and the count of ids.
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
    start, start_cpu = time.perf_counter(), time.process_time()
    batch = tok.encode_batch_fast(docs, add_special_tokens=False)
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    print(json.dumps([cpu, seconds, sum(len(e) for e in batch)]), flush=True)
`

func startPeer(python, file string, docs []string, threads int) (*peer, error) {
	p := &peer{cmd: exec.Command(python, "-c", peerProgram, file)}
	p.cmd.Env = append(os.Environ(), fmt.Sprint("RAYON_NUM_THREADS=", threads), fmt.Sprint("TOKENIZERS_PARALLELISM=", threads > 1))
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

func (p *peer) round() (cpu, seconds float64, ids int, err error) {
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		return 0, 0, 0, err
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return 0, 0, 0, fmt.Errorf("the Python side: %w", err)
	}
	var answer [3]float64
	err = json.Unmarshal([]byte(line), &answer)
	return answer[0], answer[1], int(answer[2]), err
}

func (p *peer) stop() {
	p.in.Close()
	p.cmd.Wait()
}
