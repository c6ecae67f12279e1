package hf

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/hf/hub/hubtest"
)

func startHub(t *testing.T) (*hubtest.Server, string) {
	s, home := hubtest.Start(t)
	s.Repos["models/tiny/model"] = &hubtest.Repo{Files: map[string]string{
		"config.json": "{}", "tokenizer.json": `{"a":1}`, "README.md": "no", "pytorch_model.bin": "no", "onnx/config.json": "no",
		weightsName: string(stFile(`{"a":{"dtype":"F32","shape":[1000],"data_offsets":[0,4000]}}`, 4000)),
	}}
	return s, home
}

func resolve(id string) (string, error) {
	return ResolveModel(context.Background(), hub.FromEnv(), id)
}

func TestResolveDownloads(t *testing.T) {
	s, home := startHub(t)
	dir, err := resolve("tiny/model")
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(home, "hub", "models--tiny--model", "snapshots", hubtest.Commit); dir != want {
		t.Errorf("%s, want %s", dir, want)
	}
	if last := s.Requests[len(s.Requests)-1]; !strings.Contains(last, weightsName) {
		t.Errorf("the last request is %q, not for the weights", last)
	}
	for name, want := range s.Repos["models/tiny/model"].Files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if want == "no" {
			if err == nil {
				t.Errorf("%s was downloaded", name)
			}
		} else if err != nil || string(got) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	w, err := OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()

	// From now on it is found without the server, even if another program has filled the cache.
	if err := os.RemoveAll(filepath.Join(home, "hub", "models--tiny--model", "listings")); err != nil {
		t.Fatal(err)
	}
	n := len(s.Requests)
	for _, offline := range []string{"", "1"} {
		t.Setenv("HF_HUB_OFFLINE", offline)
		for _, id := range []string{"tiny/model", "tiny/model@main", "tiny/model@" + hubtest.Commit} {
			if again, err := resolve(id); err != nil || again != dir {
				t.Errorf("%s: %s, %v", id, again, err)
			}
		}
	}
	if len(s.Requests) != n {
		t.Error("a cached model was asked for")
	}
	// A snapshot that lacks a file does not count.
	os.Remove(filepath.Join(dir, weightsName))
	_, err = resolve("tiny/model")
	wantOneLine(t, err, "a part of it", "HF_HUB_OFFLINE")
}

func TestResolveRefuses(t *testing.T) {
	s, _ := startHub(t)
	local := t.TempDir()
	if dir, err := resolve(local); err != nil || dir != local {
		t.Errorf("%s, %v", dir, err)
	}
	for _, id := range []string{"nothing", "./no/such/dir", "../x/y", "", "a/b/c"} {
		_, err := resolve(id)
		wantOneLine(t, err, "no such path", "hub id")
	}
	if len(s.Requests) > 0 {
		t.Errorf("requests %q", s.Requests)
	}
	_, err := resolve("other/model")
	wantOneLine(t, err, `"other/model"`, "no such model")

	delete(s.Repos["models/tiny/model"].Files, weightsName)
	_, err = resolve("tiny/model")
	wantOneLine(t, err, "no safetensors")

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err = ResolveModel(ctx, hub.FromEnv(), "other/model"); err != context.Canceled {
		t.Errorf("%v", err)
	}
}
