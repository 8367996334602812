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
	// open tells that the last line is that of a step under way, to be ended when something else is written.
	open bool
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

// part begins a part of the demo with a title of its own.
func (n *narrator) part(title string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.endLine()
	fmt.Fprintf(n.out, "\n%s\n%s\n", title, strings.Repeat("-", len([]rune(title))))
}

// say writes a line with the time since the start.
func (n *narrator) say(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.endLine()
	n.line(format+"\n", args...)
}

// show writes text as it is, indented below the line it belongs to.
func (n *narrator) show(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.endLine()
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		fmt.Fprintf(n.out, "           %s\n", strings.TrimRight(line, "\n"))
	}
}

// step says what begins, does it, and says how long it took: on the same line when nothing was written meanwhile.
func (n *narrator) step(what string, do func() error) error {
	n.mu.Lock()
	n.endLine()
	n.line("%s ...", what)
	n.open = true
	n.mu.Unlock()
	start := time.Now()
	err := do()
	outcome := fmt.Sprintf("done in %.1f s", time.Since(start).Seconds())
	if err != nil {
		outcome = fmt.Sprintf("failed after %.1f s", time.Since(start).Seconds())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.open {
		fmt.Fprintf(n.out, " %s\n", outcome)
		n.open = false
		return err
	}
	n.line("%s: %s\n", what, outcome)
	return err
}

// line writes the time since the start and a text.
func (n *narrator) line(format string, args ...any) {
	fmt.Fprintf(n.out, "[%5.1f s] %s", time.Since(n.began).Seconds(), fmt.Sprintf(format, args...))
}

// endLine ends the line of a step under way.
func (n *narrator) endLine() {
	if n.open {
		fmt.Fprintln(n.out)
		n.open = false
	}
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
