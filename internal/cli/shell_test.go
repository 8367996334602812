package cli_test

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/cli"
	"github.com/nearmetal/nearmetal/internal/config"
)

var update = flag.Bool("update", false, "write the expected output instead of comparing")

// t0 is when everything happens in these tests; the command line runs 90 s later.
var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// safeBuffer may be written and read at once.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
	// told is called with all that was written, after each write.
	told func(string)
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.b.Write(p)
	if s.told != nil {
		s.told(s.b.String())
	}
	return n, err
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// shell runs the command line as a shell with an environment would.
type shell struct {
	env        map[string]string
	in         io.Reader
	interrupts chan os.Signal
	patience   time.Duration
	commands   cli.Commands
	// told is called with what stands on standard error, whenever there is more.
	told func(string)
	// errs is standard error, if it is no buffer.
	errs io.Writer
}

// result is what a run left.
type result struct {
	code     int
	out, err string
}

func (sh shell) run(t *testing.T, args ...string) result {
	t.Helper()
	var out safeBuffer
	errs := safeBuffer{told: sh.told}
	in := sh.in
	if in == nil {
		in = strings.NewReader("")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var stderr io.Writer = &errs
	if sh.errs != nil {
		stderr = sh.errs
	}
	code := cli.Run(ctx, cli.Invocation{
		Args: args, Streams: config.Streams{In: in, Out: &out, Err: stderr}, Getenv: func(k string) string { return sh.env[k] },
		Interrupts: sh.interrupts, CancelPatience: sh.patience, Now: func() time.Time { return t0.Add(90 * time.Second) }, Commands: sh.commands,
	})
	return result{code, out.String(), errs.String()}
}

// during runs the command line while something else happens.
func (sh shell) during(t *testing.T, meanwhile func(), args ...string) result {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(meanwhile)
	r := sh.run(t, args...)
	wg.Wait()
	return r
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}
