//go:build !linux

package standin

// threadID would name the calling OS thread; where it cannot, all threads share what is current.
func threadID() int { return 0 }

// threadsHaveNames says that threadID tells threads apart.
const threadsHaveNames = false
