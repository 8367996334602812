// Package command reads energy by a program of the operator.
//
// The program prints one line: "watts N", the present power, or "joules N", a counter that never falls. Each reading starts it anew, without the
// agent's environment. A program that fails, prints anything else or takes too long is no reading. Start with Source.
package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/energy"
)

// maxOutput bounds what is taken of a program's output, in bytes.
const maxOutput = 4 << 10

// mostJoules and mostWatts bound what one machine can say: beyond them a number is a mistake, or would not fit.
const (
	mostJoules = 1e12
	mostWatts  = 1e6
)

// Source reads a machine's energy by a program.
type Source struct {
	args []string
	// last is the counter's last value in microjoules, valid after the first reading.
	last, total, breaks int64
	read                bool
}

// New returns a source that runs a program with its arguments; nothing is run yet.
func New(args []string) *Source { return &Source{args: args} }

// Kind implements energy.Source.
func (s *Source) Kind() api.EnergySource { return api.EnergyCommand }

// Scope implements energy.Source.
func (s *Source) Scope() string { return "what the operator's program measures" }

// Read implements energy.Source.
func (s *Source) Read(ctx context.Context) (energy.Reading, error) {
	cmd := exec.CommandContext(ctx, s.args[0], s.args[1:]...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.WaitDelay = time.Second // a child of the program may hold the output open
	var out, complaint bounded
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		s.lose()
		if ctx.Err() != nil {
			return energy.Reading{}, fmt.Errorf("program %s did not end in time", s.args[0])
		}
		return energy.Reading{}, fmt.Errorf("program %s failed: %w%s", s.args[0], err, said(complaint.String()))
	}
	reading, err := s.parse(out.String())
	if err != nil {
		s.lose()
		return energy.Reading{}, fmt.Errorf("program %s: %w", s.args[0], err)
	}
	return reading, nil
}

// parse reads the program's line.
func (s *Source) parse(text string) (energy.Reading, error) {
	unit, value, _ := strings.Cut(strings.TrimSpace(text), " ")
	n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
	if err != nil || math.IsNaN(n) || n < 0 {
		return energy.Reading{}, fmt.Errorf("it printed %q; it must print one line, \"watts N\" or \"joules N\", with N not negative", shortened(text))
	}
	switch {
	case unit == "watts" && n <= mostWatts:
		return energy.Reading{Watts: n}, nil
	case unit == "joules" && n <= mostJoules:
		return energy.Reading{Counter: s.count(int64(n * 1e6))}, nil
	case unit == "watts" || unit == "joules":
		return energy.Reading{}, fmt.Errorf("it printed %q, which is more than one machine consumes", shortened(text))
	default:
		return energy.Reading{}, fmt.Errorf("it printed %q; it must print one line, \"watts N\" or \"joules N\"", shortened(text))
	}
}

// count takes the counter's value. One that fell began anew: what it counted meanwhile is not known.
func (s *Source) count(microjoules int64) *energy.Counter {
	switch {
	case !s.read:
	case microjoules < s.last:
		s.breaks++
	default:
		s.total += microjoules - s.last
	}
	s.last, s.read = microjoules, true
	return &energy.Counter{Microjoules: s.total, Breaks: s.breaks}
}

// lose forgets where the counter stood.
func (s *Source) lose() {
	if s.read {
		s.read = false
		s.breaks++
	}
}

// bounded keeps the beginning of what is written.
type bounded struct{ kept bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	b.kept.Write(p[:min(len(p), maxOutput-b.kept.Len())])
	return len(p), nil
}

func (b *bounded) String() string { return b.kept.String() }

func said(text string) string {
	if text = strings.TrimSpace(text); text == "" {
		return ""
	}
	return ": " + shortened(text)
}

func shortened(text string) string {
	const most = 200
	text = strings.TrimSpace(text)
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}

// Check reports what is wrong with the arguments.
func Check(args []string) error {
	if len(args) == 0 || !strings.HasPrefix(args[0], "/") {
		return errors.New("the program must be given by its absolute path")
	}
	return nil
}
