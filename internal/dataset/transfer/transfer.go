// Package transfer fetches one file from the first of its sources that has it: by HTTP in parallel ranges (http.go), or by xrdcp (xrdcp.go).
//
// A transfer that was ended at any moment goes on where it was (part.go). Nothing is at its place before its checksum was verified, so what a source says
// is never believed. The package must never follow a source to this machine itself (guard.go). Start with Fetcher.Fetch.
package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/durablefile"
)

// Config is how files are fetched.
type Config struct {
	// Streams is how many ranges of a file are fetched at once; 0: 4.
	Streams int
	// BytesPerSecond bounds all transfers of a Fetcher together; 0: no bound.
	BytesPerSecond int64
	// Patience is how long a source may send nothing before the next one is asked; 0: 20 s.
	Patience time.Duration
	// Allow returns why an address must not be asked, nil if it may; nil: Outside.
	Allow func(netip.Addr) error
}

// Fetcher fetches files. It may be used by many goroutines.
type Fetcher struct {
	cfg     Config
	limiter *rate.Limiter
	client  *http.Client
}

// New makes a Fetcher.
func New(cfg Config) *Fetcher {
	cfg.Streams, cfg.Patience = cmp.Or(cfg.Streams, 4), cmp.Or(cfg.Patience, 20*time.Second)
	if cfg.Allow == nil {
		cfg.Allow = Outside
	}
	f := &Fetcher{cfg: cfg, limiter: rate.NewLimiter(rate.Inf, 0)}
	if cfg.BytesPerSecond > 0 {
		f.limiter = rate.NewLimiter(rate.Limit(cfg.BytesPerSecond), max(readBytes, int(min(cfg.BytesPerSecond/10, 1<<30))))
	}
	f.client = f.newClient()
	return f
}

// File is a file to be fetched.
type File struct {
	api.DatasetFile
	Credential *api.DatasetCredential
	// MostBytes bounds a file whose size nobody has said; 0: no bound.
	MostBytes int64
}

// most refuses a file that is larger than there is room for.
func (f *File) most(size int64) error {
	if f.MostBytes > 0 && size > f.MostBytes {
		return &localError{fmt.Errorf("it has %d bytes, and there is room for %d", size, f.MostBytes)}
	}
	return nil
}

// Result is a file that was fetched.
type Result struct {
	SizeBytes int64
	// Source is the URL that sent the last of it.
	Source string
	// Problems are what was wrong with sources that were given up.
	Problems []string
	// Passages are what came from where, in order.
	Passages []Passage
}

// ErrChecksum reports that a source sent something else than the file.
var ErrChecksum = errors.New("the content is not the file's")

// Fetch brings a file to a path, by way of path.part and path.state, which a later call goes on with. came is called with the bytes of each piece as it
// comes, negative for what is thrown away; nil: nobody counts. The error names each source and its failure; it wraps ErrChecksum if one of them sent
// something else than the file.
func (f *Fetcher) Fetch(ctx context.Context, file File, path string, came func(bytes int64)) (Result, error) {
	if came == nil {
		came = func(int64) {}
	}
	part, err := openPart(path, came)
	if err != nil {
		return Result{}, err
	}
	defer part.close()
	t := &transfer{Fetcher: f, file: file, part: part, path: path}
	return t.run(ctx)
}

// transfer is one file on its way.
type transfer struct {
	*Fetcher
	file File
	part *part
	path string
	// mixed: what there is came from several sources, or from an earlier transfer.
	mixed    bool
	problems []error
	passages []Passage
	trips    trips
}

// run asks the sources in turn, each for what is still missing. If what came together from several is wrong, each sends all of it.
func (t *transfer) run(ctx context.Context) (Result, error) {
	t.mixed = t.part.held() > 0
	for _, source := range t.file.URLs {
		done, result, err := t.from(ctx, source)
		if done || err != nil {
			return result, err
		}
		t.mixed = t.mixed || t.part.held() > 0
	}
	return Result{}, t.failure(ctx)
}

// from asks one source, and once more for all of it if it alone can't be blamed for what is wrong. An error is no source's fault.
func (t *transfer) from(ctx context.Context, source string) (done bool, result Result, err error) {
	for {
		err = t.pass(ctx, source)
		if err == nil {
			if err = t.part.sync(); err != nil {
				return false, Result{}, err
			}
			err = verify(t.part.file, t.file.DatasetFile)
		}
		switch {
		case err == nil:
			size := t.part.size
			if err := t.part.finish(t.path); err != nil {
				return false, Result{}, err
			}
			return true, Result{SizeBytes: size, Source: source, Problems: texts(t.problems), Passages: t.passages}, nil
		case ctx.Err() != nil:
			return false, Result{}, context.Cause(ctx)
		case isLocal(err):
			return false, Result{}, err
		}
		t.problems = append(t.problems, fmt.Errorf("%s: %w", source, err))
		wrong := errors.Is(err, ErrChecksum)
		if !wrong && !errors.Is(err, errOther) {
			return false, Result{}, nil // what came may be right, and the next source goes on with it
		}
		again := t.mixed
		t.mixed = false
		if err := t.part.clear(); err != nil {
			return false, Result{}, err
		}
		if !again {
			return false, Result{}, nil
		}
	}
}

// fill fetches what is missing from one source.
func (t *transfer) fill(ctx context.Context, source string) error {
	u, err := url.Parse(source)
	if err != nil {
		return err
	}
	switch u.Scheme {
	case "http", "https":
		return t.fillHTTP(ctx, source)
	case "root":
		return t.fillXRootD(ctx, u)
	default:
		return fmt.Errorf("the scheme %q can't be fetched", u.Scheme)
	}
}

// failure is what was wrong with all sources.
func (t *transfer) failure(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%q can't be fetched: %w", t.file.Path, errors.Join(t.problems...))
}

func texts(errs []error) []string {
	all := make([]string, 0, len(errs))
	for _, err := range errs {
		all = append(all, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return all
}

// errOther reports that a source has another file than the one that was begun.
var errOther = errors.New("the source has another file than before")

// localError is a failure of this machine: no source can help.
type localError struct{ err error }

func (e *localError) Error() string { return "the file can't be written: " + e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

func isLocal(err error) bool { return errors.As(err, new(*localError)) }

// Verify returns an error that wraps ErrChecksum unless the file at a path is the one that is described.
func Verify(path string, of api.DatasetFile) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return verify(file, of)
}

// finishAt moves a verified file to its place.
func finishAt(from, to string) error {
	if err := durablefile.Rename(from, to); err != nil {
		return &localError{err}
	}
	return nil
}
