package study

import (
	"bytes"
	"context"
	_ "embed" // the programs
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/internal/data/xrootd"
	"github.com/nearmetal/nearmetal/internal/measure"
	"github.com/nearmetal/nearmetal/internal/measure/condition"
	"github.com/nearmetal/nearmetal/internal/netns"
)

var (
	//go:embed make.py
	makeProgram string
	//go:embed skim.py
	skimProgram string
)

// Where things are in the world: the server at the far end of the link, the job and the cache at its near end. The network is one of those for
// benchmarks (RFC 2544, section C.2.2), in namespaces that nobody else is in.
var (
	nearEnd = netip.MustParsePrefix("198.18.0.1/30")
	farEnd  = netip.MustParsePrefix("198.18.0.2/30")
	server  = netip.AddrPortFrom(farEnd.Addr(), 1094)
	cacheAt = netip.MustParseAddrPort("127.0.0.1:1094")
)

// The file that jobs read, and another one.
const (
	fileName  = "events.root"
	otherName = "other.root"
)

// tripsEvery is the pause between two round trips that are measured while jobs run.
const tripsEvery = 20 * time.Millisecond

// The cache holds all that the job reads, in blocks of this size.
const (
	cacheBytes = 20 << 30
	blockBytes = 512 << 10
	prefetch   = 10
)

// world is what a study measures in.
type world struct {
	python, dir string
	near, far   netns.Handle
	link        *condition.Link
	server      *xrootd.Server
	cache       *xrootd.Cache
	// result is what each job must find, however it reads.
	mu     sync.Mutex
	result string
}

// newWorld makes the file and starts the server. The world's directory is removed by close.
func newWorld(ctx context.Context, python string, megabytes int) (*world, error) {
	dir, err := os.MkdirTemp("/var/tmp", "nearmetal-study-")
	if err != nil {
		return nil, err
	}
	w := &world{python: python, dir: dir}
	if err := w.build(ctx, megabytes); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *world) build(ctx context.Context, megabytes int) error {
	if err := errors.Join(os.Chmod(w.dir, 0o755), os.Mkdir(w.path("files"), 0o755)); err != nil {
		return err
	}
	var err error
	for _, space := range []*netns.Handle{&w.near, &w.far} {
		if *space, err = netns.New(); err == nil {
			err = space.Do(loopbackUp)
		}
		if err != nil {
			return fmt.Errorf("making a network namespace: %w; run this as root", err)
		}
	}
	if _, err := w.run(ctx, w.python, "-c", makeProgram, w.path("files", fileName), strconv.Itoa(megabytes), "1"); err != nil {
		return fmt.Errorf("making the file of events: %w", err)
	}
	if err := os.Link(w.path("files", fileName), w.path("files", otherName)); err != nil {
		return err
	}
	w.link, err = condition.Open(condition.Config{
		Near: condition.End{Space: w.near, Name: "near", Address: nearEnd},
		Far:  condition.End{Space: w.far, Name: "far", Address: farEnd},
	})
	if err == nil {
		w.server, err = xrootd.StartServer(ctx, w.far, xrootd.ServerConfig{Address: server, Dir: w.path("files"), Work: w.path("server")})
	}
	return err
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	return err
}

func (w *world) path(parts ...string) string {
	return filepath.Join(append([]string{w.dir}, parts...)...)
}

// close ends all that the world has, and removes its files. It says nothing of what was gone already.
func (w *world) close() {
	if w.cache != nil {
		_ = w.cache.Stop()
	}
	if w.server != nil {
		_ = w.server.Stop()
	}
	if w.link != nil {
		_ = w.link.Close()
	}
	_ = w.near.Close()
	_ = w.far.Close()
	_ = os.RemoveAll(w.dir)
}

// run runs a program at the near end, and returns what it prints.
func (w *world) run(ctx context.Context, name string, args ...string) ([]byte, error) {
	var out, said bytes.Buffer
	err := w.near.Do(func() error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Stdout, cmd.Stderr = &out, &said
		return cmd.Run()
	})
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(name), err, lastLines(said.String()))
	}
	return out.Bytes(), nil
}

// lastLines are the end of what a program said: a traceback ends with what was wrong.
func lastLines(said string) string {
	all := strings.Split(strings.TrimSpace(said), "\n")
	return strings.Join(all[max(0, len(all)-3):], "; ")
}

// measure runs the jobs of a setting once.
func (w *world) measure(ctx context.Context, side string, at setting, round int) (measure.Point, error) {
	way := at.condition(round)
	err := w.link.Change(way, way)
	if err == nil {
		err = w.link.Verify(ctx, 50)
	}
	if err == nil {
		err = w.prepare(ctx, side)
	}
	if err != nil {
		return measure.Point{}, err
	}
	unload, err := w.load(ctx, at.loaders)
	if err != nil {
		return measure.Point{}, err
	}
	_, before := w.link.Counters()
	trips := w.trips(ctx)
	took, err := w.jobs(ctx, side, at.jobs)
	seen, missed := trips()
	_, after := w.link.Counters()
	if err := errors.Join(err, missed, unload()); err != nil {
		return measure.Point{}, err
	}
	values := map[string]float64{seconds: mean(took)}
	if at.jobs > 1 {
		values[slowest] = slices.Max(took)
	}
	if crossed := after.Bytes - before.Bytes; crossed > 0 && side != near && at.loaders == 0 { // what loaders load is not the job's
		values[wireBytes] = float64(crossed) / 1e6
	}
	if len(seen) > 0 {
		slices.Sort(seen)
		values[roundTrip] = milliseconds(seen[len(seen)/2])
		values[tailTrip] = milliseconds(seen[len(seen)*95/100])
	}
	return measure.Point{X: at.x, Values: values}, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// trips measures round trips of the link until the function that it returns is called, which returns them.
func (w *world) trips(ctx context.Context) func() ([]time.Duration, error) {
	ctx, end := context.WithCancel(ctx)
	var seen []time.Duration
	var err error
	var running sync.WaitGroup
	running.Go(func() { seen, err = w.link.RoundTrips(ctx, tripsEvery) })
	return func() ([]time.Duration, error) {
		end()
		running.Wait()
		return seen, err
	}
}

// jobs runs jobs of a side at the same time, and returns how many seconds each took.
func (w *world) jobs(ctx context.Context, side string, n int) ([]float64, error) {
	took, errs := make([]float64, n), make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { took[i], errs[i] = w.job(ctx, side, i) })
	}
	running.Wait()
	return took, errors.Join(errs...)
}

// prepare brings about what a side begins with, which is not measured: a cache that has read the same before, or one in use, which has read another file of
// the server's and nothing of this one. A new process is connected for each point: congestion control remembers the round trips of the point before, BBR
// for 10 s.
func (w *world) prepare(ctx context.Context, side string) error {
	if side != cold && side != warm {
		return nil
	}
	if w.cache != nil {
		err := w.cache.Stop()
		w.cache = nil
		if err != nil {
			return err
		}
	}
	if side == cold {
		if err := os.RemoveAll(w.path("cached")); err != nil {
			return err
		}
	}
	var err error
	if w.cache, err = xrootd.StartCache(ctx, w.near, xrootd.CacheConfig{
		Address: cacheAt, Origin: server.String(), Dir: w.path("cached"), Work: w.path("cache"), SizeBytes: cacheBytes, BlockBytes: blockBytes, Prefetch: prefetch,
	}); err != nil {
		return err
	}
	if side == warm {
		_, err := w.skim(ctx, "root://"+cacheAt.String()+"//"+fileName)
		return err
	}
	_, err = w.run(ctx, "xrdcp", "--nopbar", "-f", "root://"+cacheAt.String()+"//"+otherName, w.path(otherName))
	return err
}

// job does the work of a side as one of several jobs, and returns how many seconds it took.
func (w *world) job(ctx context.Context, side string, number int) (float64, error) {
	switch side {
	case near:
		return w.skim(ctx, w.path("files", fileName))
	case stream:
		return w.skim(ctx, "root://"+server.String()+"//"+fileName)
	case cold, warm:
		return w.skim(ctx, "root://"+cacheAt.String()+"//"+fileName)
	}
	to := w.path(fmt.Sprintf("copy-%d.root", number))
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	began := time.Now()
	if _, err := w.run(ctx, "xrdcp", "--nopbar", "root://"+server.String()+"//"+fileName, to); err != nil {
		return 0, err
	}
	copying := time.Since(began).Seconds()
	took, err := w.skim(ctx, to)
	return copying + took, err
}

// skim runs the analysis, and returns its seconds. Each must find the same.
func (w *world) skim(ctx context.Context, url string) (float64, error) {
	out, err := w.run(ctx, w.python, "-c", skimProgram, url)
	if err != nil {
		return 0, err
	}
	var found struct {
		Kept    int     `json:"kept"`
		SumPt   float64 `json:"sum_pt"`
		Seconds float64 `json:"seconds"`
	}
	if err := json.Unmarshal(out, &found); err != nil || found.Kept == 0 || found.Seconds <= 0 {
		return 0, fmt.Errorf("the analysis of %s printed %q", url, out)
	}
	result := fmt.Sprintf("%d events with %.1f GeV", found.Kept, found.SumPt)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.result == "" {
		w.result = result
	}
	if result != w.result {
		return 0, fmt.Errorf("the analysis of %s found %s, and %s before", url, result, w.result)
	}
	return found.Seconds, nil
}

// checkPython returns why a Python can't do the analysis.
func checkPython(ctx context.Context, python string) error {
	said, err := exec.CommandContext(ctx, python, "-c", "import awkward, fsspec_xrootd, numpy, uproot, XRootD").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s can't run the analysis: %w: %s; see nearmetal measure remote-data --help", python, err, lastLines(string(said)))
	}
	return nil
}

// versions are those of what a study runs, as far as they can be had.
func versions(python string) []measure.Condition {
	out, err := exec.Command(python, "-c", "import uproot, XRootD; print(uproot.__version__)").Output()
	said := strings.TrimSpace(string(out))
	if err != nil {
		said = "unknown"
	}
	server, err := exec.Command(xrootd.Program, "-v").CombinedOutput()
	if err != nil {
		server = []byte("unknown")
	}
	return []measure.Condition{{Name: "uproot", Value: said}, {Name: "XRootD", Value: strings.TrimSpace(string(server))}}
}

// energy says whether the processors of this machine count their energy.
func energy() string {
	if _, err := os.Stat("/sys/class/powercap/intel-rapl:0/energy_uj"); err != nil {
		return "unavailable: this machine's kernel shows no counters (RAPL)"
	}
	return "not read by this study"
}
