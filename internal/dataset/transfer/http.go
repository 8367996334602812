package transfer

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// spanBlocks is how many blocks one request asks for.
	spanBlocks = 8
	// readBytes is how much is taken from a connection at once, at most.
	readBytes = 128 << 10
	// mostFailures in a row, without a byte between them, end the patience with a source.
	mostFailures = 3
	// mostRedirects are followed to where a file is.
	mostRedirects = 5
	dialTime      = 5 * time.Second
)

// newClient makes a client that uses no proxy, and asks no address that is not allowed, wherever a name or a redirect leads.
func (f *Fetcher) newClient() *http.Client {
	dialer := &net.Dialer{Timeout: dialTime, Control: func(_, address string, _ syscall.RawConn) error { return f.mayAsk(address) }}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: dialer.DialContext, MaxIdleConnsPerHost: f.cfg.Streams, IdleConnTimeout: 10 * time.Second, DisableCompression: true,
			TLSHandshakeTimeout: 2 * dialTime,
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			switch {
			case len(via) >= mostRedirects:
				return errors.New("the source redirects too often")
			case r.URL.Scheme != "http" && r.URL.Scheme != "https":
				return fmt.Errorf("the source redirects to the scheme %q", r.URL.Scheme)
			case via[0].URL.Scheme == "https" && r.URL.Scheme == "http": // a credential may come along
				return errors.New("the source redirects from https:// to http://")
			default:
				return nil
			}
		},
	}
}

// fillHTTP fetches what is missing by ranges, several at once, or as a whole from a server that sends no ranges.
func (t *transfer) fillHTTP(ctx context.Context, source string) error {
	h := &httpSource{transfer: t, url: source}
	if err := h.first(ctx); err != nil || h.whole {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var workers sync.WaitGroup
	for range t.cfg.Streams {
		workers.Go(func() {
			if err := h.spans(ctx); err != nil {
				cancel(err)
			}
		})
	}
	workers.Wait()
	if t.part.missing() {
		return context.Cause(ctx)
	}
	return nil
}

// httpSource is a file at a server.
type httpSource struct {
	*transfer
	url string
	tag string
	// whole: the server sends no ranges, and all of the file came.
	whole bool
}

// first asks for the first missing bytes, and learns the size of the file.
func (h *httpSource) first(ctx context.Context) error {
	if !h.part.missing() {
		return nil
	}
	begin := h.part.prefix() / blockBytes * blockBytes
	failures := 0
	for {
		before := h.part.held()
		err := h.begin(ctx, begin)
		if err == nil || ctx.Err() != nil || isLocal(err) || errors.Is(err, errOther) || errors.Is(err, errFinal) {
			return err
		}
		if failures++; h.part.held() > before {
			failures = 0
		}
		if failures >= mostFailures {
			return err
		}
		pause(ctx, time.Duration(failures)*100*time.Millisecond)
	}
}

// begin makes the first request.
func (h *httpSource) begin(ctx context.Context, begin int64) error {
	return h.ask(ctx, begin, begin+blockBytes-1, func(answer *http.Response, body io.Reader) error {
		switch answer.StatusCode {
		case http.StatusOK:
			return h.all(answer, body)
		case http.StatusRequestedRangeNotSatisfiable:
			size, err := sizeIn(answer)
			if err == nil && size == begin { // an empty file, or what came before is all
				return h.part.expect(size, "")
			}
			return fmt.Errorf("%w: the server has no byte %d of it", errOther, begin)
		}
		size, err := sizeIn(answer)
		if err != nil {
			return err
		}
		if err := h.fits(size); err != nil {
			return err
		}
		h.tag = tagOf(answer)
		if err := h.part.expect(size, h.tag); err != nil {
			return err
		}
		first := int(begin / blockBytes)
		return h.part.read(body, first, min(1, blocksOf(size)-first))
	})
}

// fits refuses a file of another size than the one described, before all of it comes.
func (h *httpSource) fits(size int64) error {
	if want := h.file.SizeBytes; want > 0 && size != want {
		return fmt.Errorf("%w: the server's file has %d bytes instead of %d", errFinal, size, want)
	}
	return h.file.most(size)
}

// all takes a whole file from a server that sends no ranges. Nothing of it can be gone on with.
func (h *httpSource) all(answer *http.Response, body io.Reader) error {
	size := answer.ContentLength
	if size < 0 {
		return fmt.Errorf("%w: the server tells no size, and sends no ranges", errFinal)
	}
	if err := h.fits(size); err != nil {
		return err
	}
	if err := h.part.expect(size, tagOf(answer)); err != nil {
		return err
	}
	if err := h.part.read(body, 0, blocksOf(size)); err != nil {
		return err
	}
	h.whole = true
	return nil
}

// errFinal reports what asking again does not change.
var errFinal = errors.New("can't be read")

// spans fetches spans until nothing is missing that no other worker fetches.
func (h *httpSource) spans(ctx context.Context) error {
	for failures := 0; ctx.Err() == nil; {
		first, n := h.part.claim(spanBlocks)
		if n == 0 {
			return nil
		}
		before := h.part.held()
		err := h.span(ctx, first, n)
		h.part.release(first, n)
		switch {
		case err == nil:
			failures = 0
			continue
		case isLocal(err) || errors.Is(err, errOther) || errors.Is(err, errFinal):
			return err
		}
		if failures++; h.part.held() > before {
			failures = 1
		}
		if failures >= mostFailures {
			return err
		}
		pause(ctx, time.Duration(failures)*100*time.Millisecond)
	}
	return nil
}

func (h *httpSource) span(ctx context.Context, first, n int) error {
	begin := int64(first) * blockBytes
	end := int64(first+n-1)*blockBytes + h.part.length(first+n-1)
	return h.ask(ctx, begin, end-1, func(answer *http.Response, body io.Reader) error {
		size, err := sizeIn(answer)
		if err != nil {
			return err
		}
		if answer.StatusCode != http.StatusPartialContent || size != h.part.size || h.tag != "" && tagOf(answer) != h.tag {
			return fmt.Errorf("%w: it changed while it was read", errOther)
		}
		return h.part.read(body, first, n)
	})
}

// ask requests a range (RFC 9110, section 14.2) and hands the answer on. A source that sends nothing for longer than the patience fails.
func (h *httpSource) ask(ctx context.Context, begin, last int64, take func(*http.Response, io.Reader) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := h.cfg.Patience
	stalled := time.AfterFunc(patience, func() { cancel(fmt.Errorf("it sent nothing for %s", patience)) })
	defer stalled.Stop()
	request, err := http.NewRequestWithContext(h.trips.traced(ctx), http.MethodGet, h.url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", begin, last))
	request.Header.Set("Accept-Encoding", "identity")
	h.authorize(request)
	answer, err := h.client.Do(request)
	if err != nil {
		return causeOf(ctx, err)
	}
	defer func() { _ = answer.Body.Close() }()
	switch answer.StatusCode {
	case http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable:
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout:
		return fmt.Errorf("the server answered %s", answer.Status)
	default:
		return fmt.Errorf("%w: the server answered %s", errFinal, answer.Status)
	}
	return causeOf(ctx, take(answer, &watched{answer.Body, ctx, h.transfer, stalled}))
}

// authorize adds the credential (RFC 7617, RFC 6750). The client of the standard library does not pass it on to another host.
func (h *httpSource) authorize(r *http.Request) {
	switch c := h.file.Credential; {
	case c == nil:
	case c.Token != "":
		r.Header.Set("Authorization", "Bearer "+c.Token)
	default:
		r.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(c.User+":"+c.Password)))
	}
}

// watched is a body whose pieces are paced, and each of which renews the patience.
type watched struct {
	from    io.Reader
	ctx     context.Context
	t       *transfer
	stalled *time.Timer
}

func (w *watched) Read(data []byte) (int, error) {
	n, err := w.from.Read(data[:min(len(data), readBytes)])
	if n > 0 {
		w.stalled.Reset(w.t.cfg.Patience)
		if wait := w.t.limiter.WaitN(w.ctx, n); wait != nil {
			return n, wait
		}
		w.stalled.Reset(w.t.cfg.Patience) // the pace is not the source's fault
	}
	return n, err
}

// sizeIn is the size of the whole file in an answer with a range (RFC 9110, section 14.4), or of all of it.
func sizeIn(answer *http.Response) (int64, error) {
	if answer.StatusCode == http.StatusOK {
		return answer.ContentLength, nil
	}
	text := answer.Header.Get("Content-Range")
	_, size, ok := strings.Cut(text, "/")
	n, err := strconv.ParseInt(size, 10, 64)
	if !ok || err != nil || n < 0 {
		return 0, fmt.Errorf("%w: the server does not tell the file's size: Content-Range is %q", errFinal, text)
	}
	return n, nil
}

// tagOf is what the server calls this version of the file, "" for nothing that is certain (RFC 9110, section 8.8.3).
func tagOf(answer *http.Response) string {
	if tag := answer.Header.Get("ETag"); !strings.HasPrefix(tag, "W/") {
		return tag
	}
	return ""
}

// causeOf returns why a context ended, where that is what failed.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// pause waits for a while, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
