package study

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/adler32"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/data/xrootd"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/paths"
	"github.com/nearmetal/nearmetal/internal/dataset/predict"
	"github.com/nearmetal/nearmetal/internal/dataset/transfer"
	"github.com/nearmetal/nearmetal/internal/measure/condition"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// The files of the far end: jobs read one, and what is known of the path comes from the other.
const (
	jobBytes   = 16 << 20
	learnBytes = 12 << 20
)

// dataWork is what a process at the near end does: it copies a file, or reads parts of it, and prints a dataWorked.
type dataWork struct {
	URL     string
	Bytes   int64
	Adler32 string
	To      string // "": it is read in parts
	Reads   float64
	Request int64
}

type dataWorked struct {
	Seconds float64
	Passage dataset.Passage
}

const dataWorkVariable = "NEARMETAL_DATA_WORK"

// TestDataWorker is the process at the near end.
func TestDataWorker(t *testing.T) {
	needs.Child(t, dataWorkVariable)
	var w dataWork
	if err := json.Unmarshal([]byte(os.Getenv(dataWorkVariable)), &w); err != nil {
		t.Fatal(err)
	}
	var out dataWorked
	began := time.Now()
	if w.To != "" {
		f := transfer.New(transfer.Config{})
		result, err := f.Fetch(t.Context(), transfer.File{DatasetFile: api.DatasetFile{Path: "f", URLs: []string{w.URL}, SizeBytes: w.Bytes, Adler32: w.Adler32}}, w.To, nil)
		if err != nil {
			t.Fatal(err)
		}
		out.Seconds = time.Since(began).Seconds()
		for _, p := range result.Passages {
			out.Passage = dataset.Passage{
				From: dataset.ServerOf(p.Source), Bytes: p.Bytes, Seconds: p.Ended.Sub(p.Began).Seconds(), Streams: p.Streams, RoundTripSeconds: p.RoundTrip.Seconds(), At: p.Ended,
			}
		}
	} else {
		read := readParts
		if strings.HasPrefix(w.URL, "root://") {
			read = readXRootDParts
		}
		if err := read(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		out.Seconds = time.Since(began).Seconds()
	}
	text, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("worked %s\n", text)
}

// readParts reads a fraction of a file evenly, one part after the other over one connection.
func readParts(ctx context.Context, w dataWork) error {
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	parts := int64(math.Ceil(w.Reads*float64(w.Bytes)/float64(w.Request) - 1e-6))
	for i := range parts {
		from := i * (w.Bytes - w.Request) / max(1, parts-1)
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.URL, nil)
		if err != nil {
			return err
		}
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, min(w.Bytes, from+w.Request)-1))
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, answer.Body)
		if err = errors.Join(err, answer.Body.Close()); err != nil || answer.StatusCode != http.StatusPartialContent {
			return fmt.Errorf("%s: %s %w", w.URL, answer.Status, err)
		}
	}
	return nil
}

// dataWorld is a link with an nginx and an XRootD server at its far end, which serve the same files.
type dataWorld struct {
	*world
	t    *testing.T
	sums map[string]string
}

const webAt = "198.18.0.2:8081"

func newDataWorld(t *testing.T) *dataWorld {
	t.Helper()
	needs.Root(t, "makes network namespaces")
	for _, p := range []string{"nginx", "xrootd", "xrdcp"} {
		needs.Program(t, p)
	}
	w := &dataWorld{world: linked(t, 0), t: t, sums: map[string]string{}}
	dir, err := os.MkdirTemp("/var/tmp", "nearmetal-paths-") // servers that are not root must reach it
	if err == nil {
		err = errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "files"), 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	w.dir = dir
	for name, size := range map[string]int{"job": jobBytes, "learn": learnBytes} {
		content := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{byte(size >> 20)}).Read(content)
		w.sums[name] = fmt.Sprintf("%08x", adler32.Checksum(content))
		if err := os.WriteFile(w.path("files", name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if w.server, err = xrootd.StartServer(t.Context(), w.far, xrootd.ServerConfig{Address: netip.MustParseAddrPort("198.18.0.2:1094"), Dir: w.path("files"), Work: w.path("server")}); err != nil {
		t.Fatal(err)
	}
	w.serveWeb()
	return w
}

// serveWeb runs nginx at the far end until the test ends.
func (w *dataWorld) serveWeb() {
	config := fmt.Sprintf(`daemon off; pid %[1]s/pid; error_log %[1]s/error.log; user root; worker_processes 1;
events {}
http { access_log off; keepalive_requests 100000; server { listen %[2]s; root %[1]s/files; } }`, w.dir, webAt)
	if err := os.WriteFile(w.path("nginx.conf"), []byte(config), 0o644); err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command("nginx", "-c", w.path("nginx.conf"), "-p", w.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // for good: the kernel ends nginx with the thread that starts it (prctl(2), PR_SET_PDEATHSIG)
		err := w.far.Enter()
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	})
	for deadline := time.Now().Add(30 * time.Second); ; {
		err := w.near.Do(func() error {
			conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(w.t.Context(), "tcp", webAt)
			if err == nil {
				err = conn.Close()
			}
			return err
		})
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("nginx does not listen: %v", err)
		}
		select {
		case <-w.t.Context().Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// do runs a process at the near end.
func (w *dataWorld) do(work dataWork) dataWorked {
	w.t.Helper()
	text, err := json.Marshal(work)
	if err != nil {
		w.t.Fatal(err)
	}
	var said bytes.Buffer
	err = w.near.Do(func() error {
		cmd := exec.CommandContext(w.t.Context(), os.Args[0], "-test.run=^TestDataWorker$")
		cmd.Env = append(os.Environ(), dataWorkVariable+"="+string(text))
		cmd.Stdout, cmd.Stderr = &said, &said
		return cmd.Run()
	})
	var out dataWorked
	_, found, ok := strings.Cut(said.String(), "worked ")
	if found, _, _ = strings.Cut(found, "\n"); err == nil && ok {
		err = json.Unmarshal([]byte(found), &out)
	}
	if err != nil || !ok {
		w.t.Fatalf("%+v: %v: %s", work, err, said.String())
	}
	return out
}

// copyOf copies a file of a server.
func (w *dataWorld) copyOf(base, name string, size int64) dataWorked {
	to := w.path("copy")
	if err := os.RemoveAll(to); err != nil {
		w.t.Fatal(err)
	}
	return w.do(dataWork{URL: base + name, Bytes: size, Adler32: w.sums[name], To: to})
}

// tried is a condition with what was predicted under it and what came of it, by choice.
type tried struct {
	way               condition.Condition
	reads             float64
	request           int64
	predicted, actual map[predict.Choice]float64
}

// randomWay is a path around the world or around the corner, and a job that reads little of a file or all of it.
func randomWay(random *rand.Rand) tried {
	log := func(low, high float64) float64 { return low * math.Pow(high/low, random.Float64()) }
	c := tried{reads: log(0.01, 1), request: int64(log(128<<10, 2<<20)), predicted: map[predict.Choice]float64{}, actual: map[predict.Choice]float64{}}
	c.reads = min(1, math.Ceil(c.reads*jobBytes/float64(c.request))*float64(c.request)/jobBytes) // whole parts are read
	c.way = condition.Condition{Delay: time.Duration(log(0.5e6, 75e6)), Seed: random.Uint64()}
	if random.IntN(3) > 0 {
		c.way.BitsPerSecond = int64(log(10e6, 900e6))
	}
	return c
}

// figures sets a condition, and returns what a copy of another file tells of the path, as nodes' transfers do.
func (w *dataWorld) figures(way condition.Condition, base string) (string, predict.Path) {
	w.t.Helper()
	if err := errors.Join(w.link.Change(way, way), w.link.Verify(w.t.Context(), 50)); err != nil {
		w.t.Fatal(err)
	}
	now := time.Now()
	seen := w.copyOf(base, "learn", learnBytes).Passage
	learned := paths.Learn(api.DataPath{}, seen.From, &seen, now.Add(time.Hour))
	figure := paths.New([]*api.DataPaths{{Node: "n1", Paths: []api.DataPath{learned}}}, now).Find("n1", seen.From)
	if figure == nil {
		w.t.Fatalf("a copy of %d MiB under %+v tells nothing of the path: %+v", learnBytes>>20, way, seen)
	}
	return seen.From, figure.Path
}

func (w *dataWorld) stream(reads float64, request int64) float64 {
	return w.do(dataWork{URL: "http://" + webAt + "/job", Bytes: jobBytes, Reads: reads, Request: request}).Seconds
}

// openingTrips are those of HTTP: one to connect, and one for the first request.
const openingTrips = 2

// readerAsMeasured reads under a few conditions that are no part of the comparison, and returns what that tells of how the program reads.
func (w *dataWorld) readerAsMeasured() predict.Reader {
	var trips []float64
	for _, delay := range []time.Duration{5 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond} {
		for _, request := range []int64{128 << 10, 512 << 10} {
			const reads = 0.25
			_, p := w.figures(condition.Condition{Delay: delay, Seed: 1}, "http://"+webAt+"/")
			took := w.stream(reads, request)
			bytes := predict.Seconds(reads*jobBytes, p, predict.Flow{Trips: openingTrips, Streams: 1})
			trips = append(trips, (took-bytes)/(reads*jobBytes/float64(request)*p.RoundTrip))
		}
	}
	slices.Sort(trips)
	w.t.Logf("round trips of a request: %.2f", trips)
	return predict.Reader{Trips: openingTrips, RequestTrips: max(1, trips[len(trips)/2])}
}

// try predicts, and then does each choice.
func (w *dataWorld) try(c *tried, base string, reader predict.Reader) {
	w.t.Helper()
	from, p := w.figures(c.way, base)
	reader.RequestBytes = float64(c.request)
	for _, p := range predict.Table(predict.Work{Bytes: jobBytes, Reads: c.reads, Jobs: 1, Reader: reader}, predict.Ways{Source: &p, FromSource: paths.CopierOf(from)}) {
		c.predicted[p.Choice] = p.Seconds
	}
	c.actual[predict.Copy] = w.copyOf(base, "job", jobBytes).Seconds
	c.actual[predict.Stream] = w.stream(c.reads, c.request)
}

// Under conditions that nobody has tuned the model on, what is predicted comes about, and choosing by it is quicker than one choice for all.
func TestChoosingByPredictionBeatsCopyingAndStreamingAlways(t *testing.T) {
	needs.Request(t, "NEARMETAL_TESTBED", "make test-testbed")
	w := newDataWorld(t)
	reader := w.readerAsMeasured()
	for i, server := range []struct{ name, base string }{{"nginx", "http://" + webAt + "/"}, {"XRootD", "root://198.18.0.2:1094//"}} {
		name, base, random := server.name, server.base, rand.New(rand.NewPCG(2026, uint64(i)))
		errs, sums := map[predict.Choice][]float64{}, map[string]float64{}
		for range 24 {
			c := randomWay(random)
			w.try(&c, base, reader)
			best, chosen := math.Inf(1), predict.Copy
			for _, choice := range []predict.Choice{predict.Copy, predict.Stream} {
				errs[choice] = append(errs[choice], math.Abs(c.actual[choice]/c.predicted[choice]-1))
				sums["always "+string(choice)] += c.actual[choice]
				best = min(best, c.actual[choice])
				if c.predicted[choice] < c.predicted[chosen] {
					chosen = choice
				}
			}
			sums["by prediction"] += c.actual[chosen]
			sums["by hindsight"] += best
			t.Logf("%s: +%.1f ms, %.0f Mbit/s, reads %.2f by %d KiB: copy %.2f s (predicted %.2f), stream %.2f s (%.2f)", name, 2e3*c.way.Delay.Seconds(),
				float64(c.way.BitsPerSecond)/1e6, c.reads, c.request>>10, c.actual[predict.Copy], c.predicted[predict.Copy], c.actual[predict.Stream], c.predicted[predict.Stream])
		}
		for choice, of := range errs {
			slices.Sort(of)
			median := of[len(of)/2]
			t.Logf("%s, %s: median error %.0f%%, 90th percentile %.0f%%", name, choice, 100*median, 100*of[len(of)*9/10])
			if median > 0.3 {
				t.Errorf("%s, %s: the median error is %.0f%%, want 30%% at most", name, choice, 100*median)
			}
		}
		t.Logf("%s: %.1f s by prediction, %.1f s with hindsight, %.1f s always copied, %.1f s always streamed", name, sums["by prediction"], sums["by hindsight"], sums["always copy"], sums["always stream"])
		if sums["by prediction"] >= min(sums["always copy"], sums["always stream"]) {
			t.Errorf("%s: choosing by prediction takes %.1f s; always copying %.1f s, always streaming %.1f s", name, sums["by prediction"], sums["always copy"], sums["always stream"])
		}
	}
}
