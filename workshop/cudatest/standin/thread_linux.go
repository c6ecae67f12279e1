package standin

import "syscall"

// threadID names the calling OS thread.
func threadID() int { return syscall.Gettid() }

// threadsHaveNames says that threadID tells threads apart.
const threadsHaveNames = true
