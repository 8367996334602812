package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/testbed/fleet"
	"github.com/nearmetal/nearmetal/testbed/fleet/cycle"
)

const (
	// cycleSize is how many machines each cluster has.
	cycleSize = 4
	// cycleEvery is the pause between two looks at the server.
	cycleEvery = 10 * time.Second
	// cycleRest is how long may pass beyond what was asked for: machines are enrolled before, and everything is finished and cleaned after.
	cycleRest = 15*time.Minute + 2*cycleQuiet
	// cycleQuiet is the pause before a look at a server at rest: some of what it tidies up waits for a minute, and it collects garbage every two at least.
	cycleQuiet = 3 * time.Minute
)

// cycles measures what the control plane takes for clusters of whole machines that are created, injured, healed and deleted without a pause, and whether
// that leaves anything behind. Machines and BMCs are simulated, protocols, agents and site are real.
func cycles(ctx context.Context, o options, dir string, log *slog.Logger, text *bytes.Buffer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, o.cycle+cycleRest)
	defer cancel()
	c, err := layCable(ctx, o, filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	restore, err := roomForNeighbours(4 * o.enrol)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, restore()) }()
	f, err := fleet.New(fleet.Config{Interface: nicLink, Namespace: &c.clients, Seed: 1, Patience: 4 * time.Second})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	short, err := os.MkdirTemp("", "nm") // sockets of members are in it
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(short)) }()
	machines, err := cycle.Start(ctx, f, short)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, machines.Close()) }()
	site, err := startDev(ctx, o, dir, "--provision", bootLink, "--machine-range", "10.77.16.1-10.77.47.254")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.stop()); cancel() }()
	if err := errors.Join(bound(ctx, "udp", 67), wait(ctx, 5*time.Second)); err != nil { // it looks for other DHCP servers first
		return err
	}
	busy := load()
	if err := cycle.Enroll(ctx, site.client, f, o.enrol); err != nil {
		return errors.Join(err, errors.New(endOf(dir+".log")))
	}
	log.Info("cycle", "enrolled_and_inspected", o.enrol)
	result, rests, err := cycleHalves(ctx, cycle.Config{
		Client: site.client, Machines: machines, Count: o.enrol, Size: cycleSize, Environment: "debian-mpi", Lasts: o.cycle / 2, Every: cycleEvery,
		Sample: func(ctx context.Context) (cycle.Sample, error) { return sampleServer(ctx, site, dir) },
	}, log)
	writeCycles(text, o, result, rests, busy)
	if err != nil {
		return errors.Join(err, errors.New(endOf(dir+".log")))
	}
	if len(result.Left) > 0 {
		return fmt.Errorf("%d things are left though all clusters are gone, such as: %s", len(result.Left), result.Left[0])
	}
	return nil
}

// cycleHalves runs two halves, each until everything is at rest, and looks at the server some minutes after each. What grew in the first one may be what each
// machine has from its first use on; what grew in the second one comes with each cluster.
func cycleHalves(ctx context.Context, cfg cycle.Config, log *slog.Logger) (both cycle.Result, rests []rest, err error) {
	for half := range 2 {
		result, err := cycle.Run(ctx, cfg)
		for _, l := range result.Lives {
			l.At += time.Duration(half) * cfg.Lasts
			both.Lives = append(both.Lives, l)
		}
		result.Lives = both.Lives
		if half == 0 {
			rests = append(rests, rest{"before", 0, result.Before})
		} else {
			result.Before, result.Samples = both.Before, append(both.Samples, result.Samples...)
		}
		both = result
		if err != nil {
			return both, rests, err
		}
		log.Info("cycle", "half", half+1, "lives", len(both.Lives), "quiet_for", cycleQuiet)
		if err := wait(ctx, cycleQuiet); err != nil {
			return both, rests, err
		}
		later, err := cfg.Sample(ctx)
		if err != nil {
			return both, rests, err
		}
		rests = append(rests, rest{fmt.Sprintf("after half %d", half+1), len(both.Lives), later})
	}
	return both, rests, nil
}

// rest is a server at rest, after so many lives of clusters.
type rest struct {
	name  string
	lives int
	cycle.Sample
}

// sampleServer reads what a site's server takes now.
func sampleServer(ctx context.Context, s *site, dir string) (cycle.Sample, error) {
	pid := s.process.Process.Pid
	now := cycle.Sample{At: time.Now(), CPU: cpuOf(pid)}
	var err error
	if now.Memory, err = residentBytes(pid); err != nil {
		return now, err
	}
	if now.Mapped, err = statusBytes(pid, "RssFile:"); err != nil {
		return now, err
	}
	metrics, err := serverMetrics(ctx, filepath.Join(dir, "server.sock"))
	if err != nil {
		return now, err
	}
	now.Goroutines, now.Heap = int(metrics["nearmetal_server_goroutines"]), metrics["nearmetal_server_heap_live_bytes"]
	err = filepath.WalkDir(filepath.Join(dir, "etcd"), func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was in use when it was listed
		}
		if err == nil {
			now.Store += info.Size()
		}
		return err
	})
	return now, err
}

// serverMetrics reads those metrics of a server that are about itself.
func serverMetrics(ctx context.Context, socket string) (map[string]int64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://server/v1/metrics", nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(name, "nearmetal_server_") {
			if all[name], err = strconv.ParseInt(value, 10, 64); err != nil {
				return nil, fmt.Errorf("the server's metric %s: %w", name, err)
			}
		}
	}
	if len(all) != 2 {
		return nil, fmt.Errorf("the server's metrics about itself are %v, want two: %s", all, response.Status)
	}
	return all, nil
}

// writeCycles tells what came out: thirds of the time beside each other, and rest before and after.
func writeCycles(text *bytes.Buffer, o options, r cycle.Result, rests []rest, busy string) {
	fmt.Fprintf(text, "Clusters of %d whole machines, created, injured, healed and deleted again and again on %d simulated machines for %s, load %s to %s\n",
		cycleSize, o.enrol, o.cycle, busy, load())
	third := func(n int) (ready, healed, freed []float64, memory, heap, routines, on []float64) {
		for _, l := range r.Lives {
			if min(int(3*l.At/o.cycle), 2) == n {
				ready, healed, freed = append(ready, l.Ready), append(healed, l.Healed), append(freed, l.Freed)
			}
		}
		for i, s := range r.Samples {
			if 3*i/len(r.Samples) == n {
				memory, heap = append(memory, float64(s.Memory)/(1<<20)), append(heap, float64(s.Heap)/(1<<20))
				routines, on = append(routines, float64(s.Goroutines)), append(on, float64(s.On))
			}
		}
		return ready, healed, freed, memory, heap, routines, on
	}
	for n, name := range []string{"first third", "second third", "last third"} {
		ready, healed, freed, memory, heap, routines, on := third(n)
		if len(ready) == 0 || len(memory) == 0 {
			continue
		}
		fmt.Fprintf(text, "  %-12s %4d lives: request to ready %s s, failure to ready %s s, delete to gone %s s; server %s MiB resident, heap in use after a collection %s MiB, %s goroutines; %s machines on\n",
			name, len(ready), spread(ready, 1), spread(healed, 1), spread(freed, 1), spread(memory, 0), spread(heap, 0), spread(routines, 0), spread(on, 0))
	}
	cpu := r.After.CPU - r.Before.CPU
	boots := float64(max(r.Members+r.Cleanings, 1))
	fmt.Fprintf(text, "  %d boots for members and %d for cleanings, %.1f a second; server's CPU %.1f s, %.1f ms a boot; %d boots came to nothing by themselves\n",
		r.Members, r.Cleanings, boots/max(r.After.At.Sub(r.Before.At).Seconds(), 1), cpu, cpu/boots*1000, r.Failed)
	for _, r := range rests {
		fmt.Fprintf(text, "  at rest %-12s %4.0f MiB resident, %.0f of them pages of files, heap in use after a collection %.1f MiB, %d goroutines, store %.1f MiB\n", r.name, float64(r.Memory)/(1<<20),
			float64(r.Mapped)/(1<<20), float64(r.Heap)/(1<<20), r.Goroutines, float64(r.Store)/(1<<20))
	}
	if len(rests) == 3 {
		grown, lives := rests[2].Heap-rests[1].Heap, rests[2].lives-rests[1].lives
		fmt.Fprintf(text, "  heap in use at rest: %.1f MiB more after the second half, %.1f KiB for each of its %d lives\n", float64(grown)/(1<<20), float64(grown)/(1<<10)/float64(max(lives, 1)), lives)
	}
	fmt.Fprintf(text, "  left in the end: %d things\n", len(r.Left))
	if r.FirstFailure != nil {
		fmt.Fprintf(text, "  the first boot that came to nothing: %v\n", r.FirstFailure)
	}
	text.WriteString("\n")
}
