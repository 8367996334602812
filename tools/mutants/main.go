// Command mutants removes each guard listed in guards.go, one at a time, and checks that its named test then fails.
//
// A guard nobody would miss is either untested or unneeded. The source tree is never touched: go test -overlay shows the compiler
// another text of one file. It fails when a mutant survives, does not compile, or when its text is no longer in the file.
// Start with guards.go, the list; each of the other guards_*.go holds those of an area.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() {
	os.Exit(run())
}

func run() int {
	var (
		only     = flag.String("only", "", "run only mutants whose guard, file or test matches this regular `expression`")
		parallel = flag.Int("parallel", max(2, runtime.NumCPU()), "how many at once")
		goExec   = flag.String("exec", "", "go test -exec `command`, such as sudo")
		root     = flag.String("root", ".", "`folder` of the module")
	)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	wanted, err := regexp.Compile(*only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants: -only:", err)
		return 1
	}
	mutants := matching(guards(), wanted)
	runner := runner{root: *root, exec: *goExec}
	fmt.Printf("%d mutants; first their tests on the unchanged source\n", len(mutants))
	if err := runner.baseline(ctx, mutants, *parallel); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		return 1
	}
	bad := runAll(ctx, runner, mutants, *parallel)
	fmt.Printf("%d of %d mutants killed\n", len(mutants)-bad, len(mutants))
	if bad > 0 || len(mutants) == 0 {
		return 1
	}
	return 0
}

// matching returns the mutants that a pattern matches.
func matching(mutants []Mutant, wanted *regexp.Regexp) []Mutant {
	var kept []Mutant
	for _, m := range mutants {
		if wanted.MatchString(m.Guard + "\n" + m.File + "\n" + m.Test) {
			kept = append(kept, m)
		}
	}
	return kept
}

// runAll tries every mutant and prints a line for each; it returns how many were not killed.
func runAll(ctx context.Context, r runner, mutants []Mutant, parallel int) int {
	var (
		group errgroup.Group
		mu    sync.Mutex
		bad   int
	)
	group.SetLimit(max(1, parallel))
	for _, m := range mutants {
		group.Go(func() error {
			start := time.Now()
			result := r.try(ctx, m)
			mu.Lock()
			defer mu.Unlock()
			fmt.Printf("%-9s %5.1fs  %s\n", result.Verdict, time.Since(start).Seconds(), m.Guard)
			if result.Verdict != Killed {
				bad++
				fmt.Printf("          %s: %s\n          %s\n", m.File, m.Test, strings.ReplaceAll(result.Detail, "\n", "\n          "))
			}
			return nil
		})
	}
	_ = group.Wait()
	return bad
}
