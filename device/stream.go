package device

// Stream is an ordered queue of work. All methods but Sync and Close only enqueue; a stream is used by one goroutine.
type Stream interface {
	// Copy copies bytes; both sides have the same length and may be in device or registered host memory. src may be in
	// memory of another device, from which this one copies: see [PeerCopier].
	Copy(dst, src Mem)
	// Zero clears.
	Zero(dst Mem)

	// Record marks this place in the queue.
	Record(e Event)
	// Wait makes later work of this stream wait for the event, which belongs to the same device.
	Wait(e Event)

	// Sync blocks until all work is done and returns the first error since the stream was made.
	Sync() error
	// Close waits for the work and ends the stream.
	Close() error

	LinearOps
	ElementOps
	NormOps
	AttentionOps
	MLPOps
	HeadOps
	EmbeddingOps
	RoutingOps
	ExpertOps
	ConvOps
	GateOps
	DeltaOps
	OptimizerOps
}
