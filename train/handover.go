package train

import (
	"context"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/rl/sampler"
	"github.com/millrace/millrace/train/rl/server"
)

// HandOver has a server sample with the weights after the latest step. It writes them in bf16 to one of two
// directories, compares the files with what memory has, has the server load them, and then removes the directory that it
// had before. Their version is [Run.Steps]. Weights that are not finite are an error.
func (r *Run) HandOver(ctx context.Context, e *server.Exports, to sampler.Server) error {
	if err := r.flushFinite(ctx); err != nil {
		return err
	}
	version := int64(r.steps)
	dir, err := e.Write(ctx, version, func(dir string, o hf.WriteOptions) error {
		return export.Write(ctx, r.env, r.src, dir, export.Format{DType: tensor.BF16}, nil, o,
			stream.Viewer(r.plan, r.session.Store))
	})
	if err != nil {
		return err
	}
	if err := to.Load(ctx, dir, version); err != nil {
		return err
	}
	return e.Taken()
}
