package hf

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/terminal"
)

// ResolveModel finds the local directory of a model: a path that exists; else a hub id, ORG/NAME or ORG/NAME@REVISION,
// in the hub's cache; else it downloads the model's files into the cache. An interrupted download is resumed.
func ResolveModel(ctx context.Context, h *hub.Hub, idOrPath string) (string, error) {
	if _, err := os.Stat(idOrPath); err == nil {
		return idOrPath, nil
	}
	repo, ok := hub.Parse(hub.Model, idOrPath)
	if !ok {
		return "", fmt.Errorf("model %s: there is no such path, and it is not a hub id (ORG/NAME)", terminal.Quote(idOrPath))
	}
	if err := h.CheckCache(repo); err != nil {
		return "", fmt.Errorf("model %s: %w", terminal.Quote(idOrPath), err)
	}
	if dir, ok := h.Cached(repo); ok && complete(dir) {
		return dir, nil
	}
	dir, err := download(ctx, h, repo)
	if err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", fmt.Errorf("model %s: there is no such path, and it cannot be downloaded: %w", terminal.Quote(idOrPath), err)
	}
	return dir, nil
}

// complete reports whether a snapshot has a config and all weights. A snapshot grows file by file while it is
// downloaded.
func complete(dir string) bool {
	exists := func(name string) bool {
		_, err := below.Stat(dir, name)
		return err == nil
	}
	if !exists(configName) {
		return false
	}
	if exists(weightsName) {
		return true
	}
	doc, err := below.Read(dir, indexName, maxHeaderBytes)
	if err != nil {
		return false
	}
	shards, err := parseIndex(doc)
	if err != nil {
		return false
	}
	for _, shard := range shards {
		if !exists(shard) {
			return false
		}
	}
	return true
}

// download brings the files that make up a model into the cache: config, sidecars and safetensors weights.
func download(ctx context.Context, h *hub.Hub, repo hub.Repo) (string, error) {
	s, err := h.Open(ctx, repo)
	if err != nil {
		return "", err
	}
	_, single := s.Find(weightsName)
	var files []hub.File
	for _, f := range s.Files {
		isShard := strings.HasPrefix(f.Name, "model-") && strings.HasSuffix(f.Name, ".safetensors") || f.Name == indexName
		wanted := f.Name == configName || f.Name == weightsName || isShard && !single || slices.Contains(sidecarNames, f.Name)
		if wanted && !strings.Contains(f.Name, "/") {
			files = append(files, f)
		}
	}
	// Weights come last: a snapshot that has them then has everything, even if the download was interrupted.
	rank := func(f hub.File) int {
		if strings.HasSuffix(f.Name, ".safetensors") {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(files, func(a, b hub.File) int { return cmp.Compare(rank(a), rank(b)) })
	if err := s.Fetch(ctx, files...); err != nil {
		return "", err
	}
	switch {
	case complete(s.Dir()):
	case s.Partial:
		return "", fmt.Errorf("a part of it is in %s only, and %w", h.Cache, hub.ErrOffline)
	default:
		return "", fmt.Errorf("%s has no %s or no safetensors weights", repo.ID, configName)
	}
	return s.Dir(), nil
}
