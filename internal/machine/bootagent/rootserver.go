package bootagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/bootagent/lazyroot"
)

// A root that is not local yet is served by a process of its own, started from the initial RAM disk. It can't be the first process: while
// that one starts a program, it stands still until the program's file was read, which is the very thing that has to be served.

// ServeRootName is the name the program is run by to serve a root.
const ServeRootName = "nearmetal-root"

// File descriptors of the serving process.
const (
	serveNBD = iota + 3
	serveControl
	serveBacking
)

// serveConfig is the first line on the control connection.
type serveConfig struct {
	Root   image.Root `json:"root"`
	List   []byte     `json:"list"`
	Offset int64      `json:"offset"`
	Server string     `json:"server"`
	Peers  []string   `json:"peers"`
	Rate   int64      `json:"rate"`
}

// serveRequest is every further line: "progress", "fill", or "meet" with other machines that fetch the same.
type serveRequest struct {
	Do   string   `json:"do"`
	URLs []string `json:"urls,omitempty"`
}

// serveEvent is what the serving process says.
type serveEvent struct {
	Progress *lazyroot.Progress `json:"progress,omitempty"`
	Whole    bool               `json:"whole,omitempty"`
	Failed   string             `json:"failed,omitempty"`
	// Port is where it gives others what it holds.
	Port int `json:"port,omitempty"`
}

// ServeRoot is the serving process. It ends when its device is detached.
func ServeRoot() error {
	// All processes are asked to end before the power goes, but those that do need their root for it.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	// Its end would be that of all others.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0o644)
	log := newLog()
	device, err := fileConn(serveNBD)
	if err != nil {
		return err
	}
	control, err := fileConn(serveControl)
	if err != nil {
		return err
	}
	requests, events := json.NewDecoder(control), json.NewEncoder(control)
	var c serveConfig
	if err := requests.Decode(&c); err != nil {
		return err
	}
	chunks, err := image.ParseChunks(c.List, c.Root)
	if err != nil {
		return err
	}
	m := lazyroot.New(lazyroot.Config{
		Root: c.Root, Chunks: chunks, Backing: &shifted{os.NewFile(serveBacking, "root"), c.Offset}, Server: c.Server, Peers: c.Peers,
		Client: httpClient(nil), RateBytesPerSecond: c.Rate, Log: log,
	})
	defer m.Close()
	var mu sync.Mutex
	say := func(e serveEvent) {
		mu.Lock()
		defer mu.Unlock()
		_ = events.Encode(e)
	}
	go func() {
		<-m.Failed()
		say(serveEvent{Failed: m.Err().Error()})
	}()
	go func() {
		for {
			var r serveRequest
			if err := requests.Decode(&r); err != nil {
				return
			}
			if r.Do == "meet" {
				m.Neighbours(r.URLs)
				continue
			}
			p := m.Progress()
			say(serveEvent{Progress: &p})
			if r.Do == "fill" {
				go func() {
					if m.Fill() == nil {
						p := m.Progress()
						say(serveEvent{Progress: &p, Whole: true})
					}
				}()
			}
		}
	}()
	if port, err := give(m); err == nil {
		say(serveEvent{Port: port})
	} else {
		log.Warn("other machines can't read the root from this machine", "error", err)
	}
	return lazyroot.ServeNBD(device, m, wholeBlocks(c.Root.SizeBytes))
}

// maxTakers bounds connections of other machines: this process must not run out of descriptors or memory by what strangers want of it.
const maxTakers = 256

// give serves what is there to other machines that fetch the same, and tells at which port, as long as this process lives.
func give(m *lazyroot.Image) (port int, err error) {
	listener, err := net.Listen("tcp4", ":0")
	if err != nil {
		return 0, err
	}
	go func() { _ = takers(m.Handler()).Serve(listener) }()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// takers is a server that bounds what each of the other machines holds, and how many.
func takers(h http.Handler) *http.Server {
	var open atomic.Int64
	return &http.Server{
		Handler: h, ReadTimeout: 10 * time.Second, WriteTimeout: 2 * time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10,
		ConnState: func(c net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				if open.Add(1) > maxTakers {
					_ = c.Close()
				}
			case http.StateClosed:
				open.Add(-1)
			}
		},
	}
}

func fileConn(descriptor uintptr) (net.Conn, error) {
	file := os.NewFile(descriptor, "socket")
	defer file.Close()
	return net.FileConn(file)
}

// rootServer is the serving process as its parent sees it.
type rootServer struct {
	control net.Conn
	ended   <-chan syscall.WaitStatus
	// whole and failed are closed; err is set before failed is.
	whole, failed chan struct{}
	err           error

	mu sync.Mutex
	// progress is the last one heard; heard is closed at the next.
	progress lazyroot.Progress
	heard    chan struct{}
	port     int
}

// startRootServer starts the process; device is its end of the block device's socket, which it alone has afterwards.
func startRootServer(init *supervisor, c serveConfig, device, backing *os.File) (*rootServer, error) {
	theirs, ours, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	control, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		return nil, err
	}
	_, ended, err := init.start(process{
		name: "the root's server", args: []string{"/init"}, title: ServeRootName, files: []*os.File{nil, nil, nil, device, theirs, backing}, keep: true,
	})
	if err != nil {
		return nil, fmt.Errorf("start the process that serves the root: %w", err)
	}
	s := &rootServer{control: control, ended: ended, whole: make(chan struct{}), failed: make(chan struct{}), heard: make(chan struct{})}
	s.progress.RootBytes = c.Root.SizeBytes
	if err := json.NewEncoder(control).Encode(c); err != nil {
		return nil, err
	}
	go s.listen()
	return s, nil
}

// listen takes what the process says until it ends.
func (s *rootServer) listen() {
	events := json.NewDecoder(s.control)
	for {
		var e serveEvent
		if err := events.Decode(&e); err != nil {
			select {
			case <-s.whole:
			default:
				s.fail(errors.New("the process that serves the root has ended"))
			}
			s.mu.Lock()
			s.port = 0
			s.mu.Unlock()
			return
		}
		if e.Progress != nil {
			s.mu.Lock()
			s.progress = *e.Progress
			close(s.heard)
			s.heard = make(chan struct{})
			s.mu.Unlock()
		}
		if e.Port != 0 {
			s.mu.Lock()
			s.port = e.Port
			s.mu.Unlock()
		}
		if e.Failed != "" {
			s.fail(errors.New(e.Failed))
		}
		if e.Whole {
			close(s.whole)
		}
	}
}

func (s *rootServer) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
		close(s.failed)
	}
}

// sharePort is where it gives others what it holds; 0: nowhere, or not yet.
func (s *rootServer) sharePort() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.port
}

// meet tells it of other machines.
func (s *rootServer) meet(urls []string) {
	_ = json.NewEncoder(s.control).Encode(serveRequest{Do: "meet", URLs: urls}) // when it has ended nobody needs them
}

// ask sends a request and returns once the process has said how far it is.
func (s *rootServer) ask(ctx context.Context, what string) lazyroot.Progress {
	s.mu.Lock()
	heard := s.heard
	s.mu.Unlock()
	if json.NewEncoder(s.control).Encode(serveRequest{Do: what}) == nil {
		select {
		case <-heard:
		case <-s.failed:
		case <-s.whole:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.progress
}

// fill returns once all is local, or why it never will be.
func (s *rootServer) fill(ctx context.Context) error {
	s.ask(ctx, "fill")
	select {
	case <-s.whole:
		return nil
	case <-s.failed:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}
