package bootagent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// kmsg logs to the kernel's log, which every console of the machine shows: a person in front of it sees what the boot waits for.
type kmsg struct {
	mu   *sync.Mutex
	file *os.File
	text string
}

// newLog logs to /dev/kmsg, or to the standard error where that can't be opened.
func newLog() *slog.Logger {
	file, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(&kmsg{mu: &sync.Mutex{}, file: file})
}

func (k *kmsg) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (k *kmsg) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	// Facility daemon, severity warning, so that "quiet" shows it too; errors one step above (RFC 5424, section 6.2.1).
	severity := 4
	if r.Level >= slog.LevelError {
		severity = 3
	}
	fmt.Fprintf(&b, "<%d>nearmetal: %s", 3<<3|severity, r.Message)
	attribute := func(a slog.Attr) bool {
		value := a.Value.Resolve()
		if value.Kind() == slog.KindDuration {
			value = slog.StringValue(value.Duration().Round(time.Millisecond).String())
		}
		fmt.Fprintf(&b, " %s=%s", a.Key, strings.ReplaceAll(value.String(), "\n", " "))
		return true
	}
	b.WriteString(k.text)
	r.Attrs(attribute)
	line := b.String()
	// One write is one line, and the kernel takes about a thousand bytes of it.
	if len(line) > 900 {
		line = line[:900] + "..."
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := k.file.WriteString(line)
	return err
}

func (k *kmsg) WithAttrs(attrs []slog.Attr) slog.Handler {
	text := k.text
	for _, a := range attrs {
		text += fmt.Sprintf(" %s=%s", a.Key, a.Value)
	}
	return &kmsg{mu: k.mu, file: k.file, text: text}
}

func (k *kmsg) WithGroup(string) slog.Handler { return k }
