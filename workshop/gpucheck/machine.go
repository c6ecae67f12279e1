package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// machine describes this machine, for readers of the figures. Nothing of it can fail.
func machine(c *check) (string, error) {
	for _, command := range [][]string{{"uname", "-a"}, {"nvidia-smi"}, {"lscpu"}, {"cat", "/proc/meminfo"},
		{"cat", "/sys/kernel/mm/transparent_hugepage/enabled"}, {"cat", "/sys/fs/cgroup/memory.max"}, {"df", "-h", "."}, {"python3", "--version"}} {
		_, _ = c.command(nil, command[0], command[1:]...) // what there is goes to the log
	}
	for _, name := range []string{"PATH", "HOME", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES"} {
		c.logf("%s=%s\n", name, os.Getenv(name))
	}
	if c.call != "" { // which has no row memory; the machine is lent for this alone
		c.hostBytes = hostMemory("/proc/meminfo", "/sys/fs/cgroup/memory.max")
	}
	c.found = c.findLibrary()
	note := "there is no cuBLASLt on this machine"
	if c.found != "" {
		note = "cuBLASLt is at " + c.found
	}
	return fmt.Sprintf("%d processors; %s", runtime.NumCPU(), note), nil
}

// hostMemory is the memory that the system has, or that the container may use of it, in bytes; 0: it is not known.
func hostMemory(meminfo, limit string) int64 {
	text, err := os.ReadFile(meminfo)
	if err != nil {
		return 0
	}
	var kib int64
	if _, err := fmt.Sscanf(string(text), "MemTotal: %d kB", &kib); err != nil {
		return 0
	}
	total := kib << 10
	if text, err := os.ReadFile(limit); err == nil {
		if most, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
			total = min(total, most)
		}
	}
	return total
}

// libraryName matches the names of cuBLASLt's files.
const libraryName = "libcublasLt.so.1[23]*"

// findLibrary returns the path of a cuBLASLt on this machine, empty if there seems to be none. The places where
// toolkits and packages of Python are usually installed are looked through first: all of a large cold disk takes
// longer than the row has.
func (c *check) findLibrary() string {
	usual := []string{"/usr/local/cuda*/targets/*/lib", "/usr/local/cuda*/lib64", "/usr/lib/*-linux-gnu", "/usr/lib64"}
	for _, root := range []string{"/usr", "/usr/local", "/opt/*", "/root/.*/*/*", "/home/*/.*/*/*",
		os.Getenv("VIRTUAL_ENV"), os.Getenv("CONDA_PREFIX"), os.Getenv("HOME") + "/.local"} {
		if filepath.IsAbs(root) {
			usual = append(usual, root+"/lib/python3*/*-packages/nvidia/*/lib", root+"/lib")
		}
	}
	for _, dir := range usual {
		if found, err := filepath.Glob(filepath.Join(dir, libraryName)); err == nil && len(found) > 0 {
			return found[0]
		}
	}
	root := "/"
	if c.tiny { // the stand-in has no library, and nothing learns more from a large disk
		root = c.work
	}
	ctx, cancel := context.WithTimeout(c.ctx, searchSeconds*time.Second)
	defer cancel()
	whole := c.ctx
	c.ctx = ctx
	defer func() { c.ctx = whole }()
	said, _ := c.command(nil, "find", root, "-xdev", "-name", libraryName,
		"-not", "-path", "/proc/*") // what it found until then
	found, _, _ := strings.Cut(said, "\n")
	return found
}

// searchSeconds bounds the search of a disk.
const searchSeconds = 5

// deviceLine matches the line in which `millrace plan` names the device.
var deviceLine = regexp.MustCompile(`(?m)^device   (.*)$`)

// open opens the GPU twice: the first time its driver may have kernels to compile.
func open(c *check) (string, error) {
	var sec [2]float64
	var name string
	for i := range sec {
		begin := time.Now()
		said, err := c.command(nil, "millrace", "plan", c.runFile())
		if err != nil {
			return "", err
		}
		sec[i] = time.Since(begin).Seconds()
		if m := deviceLine.FindStringSubmatch(said); m != nil {
			name = m[1]
		}
	}
	said, err := c.command(nil, "millrace", "plan", c.runFile(), "--json")
	if err != nil {
		return "", err
	}
	var p planned
	if err := json.Unmarshal([]byte(said), &p); err != nil {
		return "", fmt.Errorf("plan --json: %w", err)
	}
	c.report.Machine, c.warning = name, p.Warning
	note := fmt.Sprintf("%s; the program starts and plans in %.1f s, then in %.1f s; %s", name, sec[0], sec[1], p.ComputedOn)
	if c.warning != "" && c.found != "" && !c.tiny { // the stand-in has no library
		return note, fmt.Errorf("cuBLASLt is at %s and is not used: %s", c.found, c.warning)
	}
	return note, nil
}

// planned has the fields of a plan that the rows read.
type planned struct {
	Warning           string `json:"warning"`
	ComputedOn        string `json:"computed_on"`
	DeviceBytes       int64  `json:"device_bytes"`
	DeviceDriverBytes int64  `json:"device_driver_bytes"`
	Predicted         struct {
		UploadBytes int64 `json:"upload_bytes"`
	} `json:"predicted"`
	Placement struct {
		Deal       []int `json:"deal"`
		PeerCopies bool  `json:"peer_copies"`
	} `json:"placement"`
}

// hostLine matches the line in which the test of memory tells how many bytes of the host a run may use.
var hostLine = regexp.MustCompile(`(?m)^HOST (\d+)$`)

// memory asks how much host memory there is, and what pinning it takes.
func memory(c *check) (string, error) {
	said, err := c.command([]string{"MILLRACE_GPU=1"}, "cuda.test", testArgs(c, "TestGPUMemory")...)
	if m := hostLine.FindStringSubmatch(said); m != nil {
		c.hostBytes, _ = strconv.ParseInt(m[1], 10, 64) // the benchmarks that follow do without
	}
	return testNote(said), err
}

// runFile names the run file of the small model.
func (c *check) runFile() string { return filepath.Join(c.work, "run.yaml") }

// writeModel writes the small model that rows train: its heads and sizes reach cuBLASLt and the kernels for aligned
// operands.
func (c *check) writeModel() error {
	hidden, inner, layers, heads, sequence, tokens, steps := 512, 1536, 8, 8, 256, 2048, 20
	if c.tiny {
		hidden, inner, layers, heads, sequence, tokens, steps = 128, 128, 2, 2, 32, 64, 2
	}
	folder := filepath.Join(c.work, "model")
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	config := fmt.Sprintf(`{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 320, "hidden_size": %d,
 "intermediate_size": %d, "num_hidden_layers": %d, "num_attention_heads": %d, "num_key_value_heads": %d, "head_dim": 64,
 "hidden_act": "silu", "attention_bias": false, "max_position_embeddings": 1024, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
 "tie_word_embeddings": true, "torch_dtype": "bfloat16", "initializer_range": 0.02}
`, hidden, inner, layers, heads, heads/2)
	run := fmt.Sprintf(`model: %s
init: random
tokenizer: bytes
datasets: [{path: %s, type: text}]
sequence_len: %d
batch_tokens: %d
max_steps: %d
learning_rate: 1e-3
warmup_steps: 2
device: %s
numerics: {micro_batch: %d, head_chunk: %d}
memory: {recompute: always}
save: {every: 0}
resume: never
`, folder, filepath.Join(c.dir, "data/text.txt"), sequence, tokens, steps, c.gpu, tokens/sequence/2, sequence)
	return errors.Join(os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o664),
		os.WriteFile(c.runFile(), []byte(run), 0o664))
}
