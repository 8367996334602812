package demo

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// narrator tells what happens and how long it took. Times count from the start of the outer process.
type narrator struct {
	mu    sync.Mutex
	out   io.Writer
	began time.Time
	// rest is the beginning of a job's line whose end has not come yet.
	rest []byte
}

// beginning hands the outer process's start to the inner one.
const beginning = "NEARMETAL_DEMO_BEGAN"

func newNarrator(out io.Writer) *narrator {
	n := &narrator{out: out, began: time.Now()}
	if ms, err := strconv.ParseInt(os.Getenv(beginning), 10, 64); err == nil {
		n.began = time.UnixMilli(ms)
	}
	return n
}

// say writes a line with the time since the start.
func (n *narrator) say(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintf(n.out, "[%5.1f s] %s\n", time.Since(n.began).Seconds(), fmt.Sprintf(format, args...))
}

// show writes text as it is, indented below the line it belongs to.
func (n *narrator) show(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		fmt.Fprintf(n.out, "           %s\n", strings.TrimRight(line, "\n"))
	}
}

// step says what begins, does it, and says how long it took.
func (n *narrator) step(what string, do func() error) error {
	n.say("%s ...", what)
	start := time.Now()
	if err := do(); err != nil {
		n.say("%s: failed after %.1f s", what, time.Since(start).Seconds())
		return err
	}
	n.say("%s: done in %.1f s", what, time.Since(start).Seconds())
	return nil
}

// Write shows what a job prints, whole lines as they come.
func (n *narrator) Write(p []byte) (int, error) {
	n.rest = append(n.rest, p...)
	if end := bytes.LastIndexByte(n.rest, '\n'); end >= 0 {
		n.show(string(n.rest[:end]))
		n.rest = n.rest[end+1:]
	}
	return len(p), nil
}
