// Command serve measures what open pages cost a run. It trains a small model with `train --serve` again and again, by
// turns without and with watchers (A B B A), which are in a process of their own and do what a page does: they wait for
// events, and then ask for the list of runs and for the new numbers of all curves.
//
// Where there are two cores, the run has one of them and the watchers the other, so that a step does not wait for the
// watchers themselves. The time of a step changes with the machine, by more than the server takes. So -apart measures
// what that is: the processor time of `millrace serve` while a run of no work writes two records a second.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/benchmarks/internal/harness"
	"github.com/millrace/millrace/trace"
)

func main() {
	log.SetFlags(0)
	program := flag.String("millrace", "millrace", "the program")
	watchers := flag.Int("watchers", 200, "open pages")
	steps := flag.Int("steps", 60, "steps of each run")
	rounds := flag.Int("rounds", 1, "rounds of four runs")
	apart := flag.Duration("apart", 0, "measure millrace serve for so long, without and with watchers, and no run "+
		"that trains")
	watch := flag.String("watch", "", "only watch the server at this address: what the program starts itself as")
	flag.Parse()
	if *watch != "" {
		all(*watch, *watchers)
		return
	}
	if *apart > 0 {
		for _, n := range []int{0, *watchers, *watchers, 0} {
			line, err := server(*program, n, *apart)
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(line)
		}
		return
	}
	if err := measure(*program, *watchers, *steps, *rounds); err != nil {
		log.Fatal(err)
	}
}

// measured is a run.
type measured struct {
	stepSec harness.Series
	cpuSec  float64 // of the process, over a step
	asked   string  // what the watchers say in the end
}

func measure(program string, watchers, steps, rounds int) error {
	dir, err := os.MkdirTemp("", "serve")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	shape := harness.Llama{Hidden: 256, Intermediate: 768, Layers: 6, Heads: 4, KVHeads: 4, Vocab: 320}
	if err := shape.Write(dir); err != nil {
		return err
	}
	run := fmt.Sprintf("model: %s\ninit: random\ntokenizer: bytes\ndatasets: [{path: %s, type: text}]\n"+
		"sequence_len: 256\nbatch_tokens: 2048\nmax_steps: %d\nsave: {at_end: false}\n", dir,
		filepath.Join(dir, "text.txt"), steps)
	for name, text := range map[string]string{"run.yaml": run,
		"text.txt": strings.Repeat("the quick brown fox jumps over the lazy dog. ", 4000)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			return err
		}
	}
	var without, with []measured
	for round := range rounds {
		for turn, n := range []int{0, watchers, watchers, 0} {
			m, err := once(program, dir, fmt.Sprintf("run-%d-%d", round, turn), n)
			if err != nil {
				return err
			}
			low, high := m.stepSec.Quartiles()
			fmt.Printf("%3d watchers: step %.4f s (%.4f to %.4f), processor time of a step %.4f s; %s\n", n,
				m.stepSec.Median(), low, high, m.cpuSec, m.asked)
			if n > 0 {
				with = append(with, m)
			} else {
				without = append(without, m)
			}
		}
	}
	of := func(all []measured, number func(m measured) float64) (s harness.Series) {
		for _, m := range all {
			s = append(s, number(m))
		}
		return s
	}
	for name, number := range map[string]func(m measured) float64{
		"median step": func(m measured) float64 { return m.stepSec.Median() },
		"processor":   func(m measured) float64 { return m.cpuSec }} {
		a, b := of(without, number).Median(), of(with, number).Median()
		fmt.Printf("%s: %.4f s without, %.4f s with %d watchers: %+.2f%%\n", name, a, b, watchers, 100*(b/a-1))
	}
	return nil
}

// pinned is a command on one of the first two cores.
func pinned(core int, args ...string) *exec.Cmd {
	return exec.Command("taskset", append([]string{"-c", fmt.Sprint(core)}, args...)...)
}

var address = regexp.MustCompile(`http://127\.0\.0\.1:\d+/`)

// once trains, with watchers.
func once(program, dir, name string, watchers int) (m measured, err error) {
	out := filepath.Join(dir, name)
	c := pinned(0, program, "train", filepath.Join(dir, "run.yaml"), "output_dir="+out, "--serve=127.0.0.1:0")
	c.Env = append(os.Environ(), "MILLRACE_CACHE="+filepath.Join(dir, "cache"))
	read, write := io.Pipe()
	c.Stdout, c.Stderr = write, write
	if err := c.Start(); err != nil {
		return m, err
	}
	var said bytes.Buffer
	at := make(chan string, 1)
	go func() {
		for in := bufio.NewScanner(read); in.Scan(); {
			fmt.Fprintln(&said, in.Text())
			if a := address.FindString(in.Text()); a != "" {
				select {
				case at <- a:
				default:
				}
			}
		}
		close(at)
	}()
	server, ok := <-at
	if !ok {
		return m, fmt.Errorf("the run told no address:\n%s", said.String())
	}
	m.asked = "nothing asked"
	var watching *exec.Cmd
	var told bytes.Buffer
	if watchers > 0 {
		watching = pinned(1, os.Args[0], "-watch", server, "-watchers", fmt.Sprint(watchers))
		watching.Stdout, watching.Stderr = &told, os.Stderr
		if err := watching.Start(); err != nil {
			return m, err
		}
	}
	err = c.Wait()
	_ = write.Close()
	if watching != nil { // it ends with the server
		if err := watching.Wait(); err != nil {
			return m, err
		}
		m.asked = strings.TrimSpace(told.String())
	}
	if err != nil {
		return m, fmt.Errorf("%w:\n%s", err, said.String())
	}
	f, err := os.Open(filepath.Join(out, "metrics.jsonl"))
	if err != nil {
		return m, err
	}
	defer f.Close()
	records, err := trace.ReadMetrics(f)
	if err != nil {
		return m, err
	}
	for _, r := range records[min(5, len(records)):] {
		m.stepSec = append(m.stepSec, r.StepSec)
	}
	used := c.ProcessState
	m.cpuSec = (used.UserTime() + used.SystemTime()).Seconds() / float64(len(records))
	return m, nil
}

// openingTime is left out of what is measured: pages open, and ask for all numbers once.
const openingTime = 15 * time.Second

// server measures `millrace serve` with watchers.
func server(program string, watchers int, during time.Duration) (line string, err error) {
	dir, err := os.MkdirTemp("", "serve")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	f, err := os.Create(filepath.Join(dir, "metrics.jsonl"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	step := int64(0)
	record := func() error {
		step++
		at := time.Now().UTC().Format(time.RFC3339)
		doc, err := json.Marshal(trace.Metrics{Step: step, Loss: 2 + 1/float64(step), GradNorm: 1, ClipScale: 1,
			LearningRate: 1e-5, Tokens: 8192, TargetTokens: 6000, TokensPerSec: 16000, StepSec: 0.5, ModelTFLOPS: 3,
			HostPeakBytes: 1 << 33, Time: &at, Objective: map[string]float64{"entropy": 1.4, "mean_token_accuracy": 0.5}})
		if err == nil {
			_, err = f.Write(append(doc, '\n'))
		}
		return err
	}
	for step < 2000 {
		if err := record(); err != nil {
			return "", err
		}
	}
	c := exec.Command(program, "serve", dir, "--address", "127.0.0.1:0")
	out, err := c.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := c.Start(); err != nil {
		return "", err
	}
	defer func() { _, _ = c.Process.Kill(), c.Wait() }()
	said, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", err
	}
	var watching *exec.Cmd
	var told bytes.Buffer
	if watchers > 0 {
		watching = exec.Command(os.Args[0], "-watch", address.FindString(said), "-watchers", fmt.Sprint(watchers))
		watching.Stdout = &told
		if err := watching.Start(); err != nil {
			return "", err
		}
	}
	var before float64
	begun := time.Now()
	for opening := true; opening || time.Since(begun) < during; {
		time.Sleep(500 * time.Millisecond)
		if err := record(); err != nil {
			return "", err
		}
		if opening && time.Since(begun) > openingTime {
			opening, before, begun = false, usedSec(c.Process.Pid), time.Now()
		}
	}
	share := (usedSec(c.Process.Pid) - before) / time.Since(begun).Seconds()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid))
	if err != nil {
		return "", err
	}
	_ = c.Process.Kill()
	if watching != nil {
		if err := watching.Wait(); err != nil {
			return "", err
		}
	}
	rss := regexp.MustCompile(`VmRSS:\s*(.*)`).FindSubmatch(status)
	return fmt.Sprintf("%3d watchers: millrace serve takes %.2f%% of a core, %s resident; %s", watchers, 100*share, rss[1],
		strings.TrimSpace(told.String())), nil
}

// usedSec is the processor time of a process so far, of which Linux counts hundredths.
func usedSec(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		log.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var user, system float64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		log.Fatal(err)
	}
	return (user + system) / 100
}

// all watches a server with n pages, until it ends.
func all(server string, n int) {
	var pages sync.WaitGroup
	var events, answers atomic.Int64
	for range n {
		pages.Go(func() {
			client := &http.Client{Transport: &http.Transport{}} // connections of its own, as a browser has them
			for page(client, server, &events, &answers) == nil {
			}
		})
	}
	pages.Wait()
	fmt.Printf("%d events and %d answers\n", events.Load(), answers.Load())
}

// page does what an open page does: at each event it asks for what is new.
func page(client *http.Client, server string, events, answers *atomic.Int64) error {
	stream, err := client.Get(server + "api/events")
	if err != nil {
		return err
	}
	defer stream.Body.Close()
	last := int64(0)
	in := bufio.NewScanner(stream.Body)
	for in.Scan() {
		if !strings.HasPrefix(in.Text(), "data:") {
			continue
		}
		events.Add(1)
		var list struct {
			Runs []struct {
				ID      string   `json:"id"`
				Last    int64    `json:"last_step"`
				Columns []string `json:"columns"`
			} `json:"runs"`
		}
		if err := ask(client, server+"api/runs", &list); err != nil {
			return err
		}
		answers.Add(1)
		for _, r := range list.Runs {
			if len(r.Columns) == 0 {
				continue
			}
			from := fmt.Sprint(last)
			last = r.Last
			q := url.Values{"names": {strings.Join(r.Columns, ",")}, "from": {from}, "to": {fmt.Sprint(r.Last)}}
			if err := ask(client, server+"api/runs/"+r.ID+"/columns?"+q.Encode(), nil); err != nil {
				return err
			}
			answers.Add(1)
		}
	}
	return io.EOF
}

func ask(client *http.Client, address string, into any) error {
	resp, err := client.Get(address)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	doc, err := io.ReadAll(resp.Body)
	if err == nil && into != nil {
		err = json.Unmarshal(doc, into)
	}
	return err
}
