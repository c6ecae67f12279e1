package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// machine says what this machine is, for readers of the figures. Nothing of it can fail.
func machine(c *check) (string, error) {
	for _, command := range [][]string{{"uname", "-a"}, {"nvidia-smi"}, {"lscpu"}, {"cat", "/proc/meminfo"},
		{"cat", "/sys/kernel/mm/transparent_hugepage/enabled"}, {"cat", "/sys/fs/cgroup/memory.max"}, {"df", "-h", "."}, {"python3", "--version"}} {
		_, _ = c.command(nil, command[0], command[1:]...) // what there is goes to the log
	}
	for _, name := range []string{"PATH", "HOME", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES"} {
		c.logf("%s=%s\n", name, os.Getenv(name))
	}
	if said, err := c.command(nil, "nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader,nounits"); err == nil {
		fields := strings.Split(strings.TrimSpace(strings.Split(said, "\n")[0]), ", ")
		if mib, err := strconv.ParseInt(fields[len(fields)-1], 10, 64); err == nil {
			c.deviceBytes = mib << 20
		}
	}
	c.found = c.findLibrary()
	note := "there is no cuBLASLt on this machine"
	if c.found != "" {
		note = "cuBLASLt is at " + c.found
	}
	return fmt.Sprintf("%d processors; %s", processors(), note), nil
}

// libraryName is that of cuBLASLt's files.
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
	ctx, cancel := context.WithTimeout(c.ctx, searchSeconds*time.Second)
	defer cancel()
	whole := c.ctx
	c.ctx = ctx
	defer func() { c.ctx = whole }()
	said, _ := c.command(nil, "find", "/", "-xdev", "-name", libraryName,
		"-not", "-path", "/proc/*") // what it found until then
	found, _, _ := strings.Cut(said, "\n")
	return found
}

// searchSeconds bounds the search of a disk.
const searchSeconds = 5

// processors returns the number of processors that this process may run on.
func processors() int {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	m := regexp.MustCompile(`(?m)^Cpus_allowed:\s*([0-9a-f,]+)$`).FindSubmatch(text)
	if m == nil {
		return 0
	}
	n := 0
	for _, digit := range string(m[1]) {
		if x, err := strconv.ParseUint(string(digit), 16, 8); err == nil {
			for ; x != 0; x &= x - 1 {
				n++
			}
		}
	}
	return n
}

// deviceLine is the line in which `millrace plan` names the device.
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

// planned is the part of a plan that gpucheck reads.
type planned struct {
	Warning           string `json:"warning"`
	ComputedOn        string `json:"computed_on"`
	DeviceBytes       int64  `json:"device_bytes"`
	DeviceDriverBytes int64  `json:"device_driver_bytes"`
	Predicted         struct {
		UploadBytes int64 `json:"upload_bytes"`
	} `json:"predicted"`
}

// memory asks how much host memory there is, and what pinning it takes.
func memory(c *check) (string, error) {
	touch, pin := "120GiB", "16GiB"
	if c.tiny {
		touch, pin = "256MiB", "16MiB"
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	said, err := c.command(nil, self, memoryCommand, "touch", touch)
	var touched touchedMemory
	if err := errors.Join(err, json.Unmarshal([]byte(lastLine(said)), &touched)); err != nil {
		return "", err
	}
	note := fmt.Sprintf("%s at once, %s after %s were touched in %.1f s", gib(touched.BeforeBytes), gib(touched.AfterBytes), gib(touched.TouchedBytes), touched.Seconds)
	// All touched memory is free again, even if the system does not report it yet.
	c.hostBytes = max(touched.TouchedBytes, touched.AfterBytes)
	said, err = c.command(nil, self, memoryCommand, "pin", pin)
	var pinned pinnedMemory
	if err := errors.Join(err, json.Unmarshal([]byte(lastLine(said)), &pinned)); err != nil {
		return note, err
	}
	return fmt.Sprintf("%s; %s pinned in %.2f s by one thread and %.2f s by four, for %.1f MiB of the GPU and %.1f MiB of the host", note,
		gib(pinned.Bytes), pinned.OneSeconds, pinned.FourSeconds, float64(pinned.DeviceBytes)/(1<<20), float64(pinned.HostBytes)/(1<<20)), nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

func gib(bytes int64) string {
	if bytes < 1<<30 {
		return fmt.Sprintf("%.0f MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
}

// runFile is the run file of the small model.
func (c *check) runFile() string { return filepath.Join(c.work, "run.yaml") }

// writeModel writes the small model that rows train: its heads and sizes reach cuBLASLt and the kernels for aligned
// operands.
func (c *check) writeModel() error {
	hidden, inner, layers, heads, sequence, tokens, steps := 512, 1536, 8, 8, 256, 2048, 20
	if c.tiny {
		hidden, inner, layers, heads, sequence, tokens, steps = 128, 128, 2, 2, 32, 64, 4
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
	return errors.Join(os.WriteFile(filepath.Join(folder, "config.json"), []byte(config), 0o666),
		os.WriteFile(c.runFile(), []byte(run), 0o666))
}
