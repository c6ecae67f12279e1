package mpi

import "context"

// Peers are the other ranks as the hosts of a run reach them.
type Peers struct{ World *World }

// tagPeers is the tag of their messages.
const tagPeers = 0

// Send sends b to a rank, and returns when b may change. A context that ends is a failure of the World.
func (p Peers) Send(ctx context.Context, rank int, b []byte) error {
	return p.World.await(ctx, p.World.Send(rank, tagPeers, b))
}

// Receive fills b with the next message of a rank, which has as many bytes. A context that ends is a failure of the
// World.
func (p Peers) Receive(ctx context.Context, rank int, b []byte) error {
	return p.World.await(ctx, p.World.Receive(rank, tagPeers, b))
}

// Exchange exchanges bytes over the World.
func (p Peers) Exchange(b []byte) ([][]byte, error) { return p.World.Exchange(b) }

// await waits for a request. Where the context ends first, the library is called for no request any more: their bytes
// may be given back then.
func (w *World) await(ctx context.Context, r *Request) error {
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		w.thread.do(func() {
			if w.thread.failed == nil {
				w.thread.fail(ctx.Err())
			}
		})
		return ctx.Err()
	}
}
