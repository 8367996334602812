package hostile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// endless is a line that never ends, up to most bytes; it counts what was taken of it.
type endless struct {
	most, sent int64
}

func (e *endless) Read(p []byte) (int, error) {
	if e.sent >= e.most {
		return 0, io.EOF
	}
	n := copy(p, bytes.Repeat([]byte{'x'}, min(len(p), 64<<10)))
	e.sent += int64(n)
	return n, nil
}

// What one node sends takes a bounded part of the server, however much it is.
func TestALineThatNeverEndsEndsItsStream(t *testing.T) {
	s := newAttacked(t)
	rogue := s.enrolled(1)
	const most = 256 << 20
	line := &endless{most: most}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+s.address+streamPath, line)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := rogue.http.Do(req)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	if line.sent >= most/4 {
		t.Errorf("the server took %d bytes of one line (%v), want its stream ended after a few MiB", line.sent, err)
	}
}

// raw opens a stream on which the test writes lines of its own, after a greeting.
func (n *node) raw() *io.PipeWriter {
	n.t.Helper()
	reader, writer := io.Pipe()
	req, err := http.NewRequestWithContext(n.t.Context(), http.MethodPost, "https://"+n.address+streamPath, reader)
	if err != nil {
		n.t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: n.http.Transport}).Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		_ = writer.CloseWithError(errStreamEnded)
		_ = reader.CloseWithError(errStreamEnded)
	}()
	n.t.Cleanup(func() { _ = writer.Close() })
	n.line(writer, agentstream.Up{Hello: &agentstream.Hello{Run: "raw", Node: n.record}})
	n.eventually(func() (string, bool) {
		got, err := n.admin.Node(n.t.Context(), n.identity.Node)
		return fmt.Sprintf("node %s is %s (%v)", n.identity.Node, got.Phase, err), err == nil && got.Phase == api.NodeReady
	})
	return writer
}

// line writes one message.
func (n *node) line(to io.Writer, m agentstream.Up) {
	n.t.Helper()
	text, err := json.Marshal(m)
	if err == nil {
		_, err = to.Write(append(text, '\n'))
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

var errStreamEnded = errors.New("the server has ended the stream")

func TestANodeThatSaysTooMuchIsLetGo(t *testing.T) {
	s := newAttacked(t)
	rogue := s.enrolled(1)
	to := rogue.raw()
	// 64 pieces of 8,192 members are twice what is held of a node, none with a head: the state is never whole.
	said := 0
	for piece := range 64 {
		var line strings.Builder
		line.WriteString(`{"observed":{"items":[`)
		for i := range 8192 {
			if i > 0 {
				line.WriteByte(',')
			}
			fmt.Fprintf(&line, `{"list":"clean","key":"%d.%d","value":"x"}`, piece, i)
		}
		line.WriteString("]}}\n")
		if _, err := io.WriteString(to, line.String()); err != nil {
			break
		}
		said += 8192
	}
	if said >= 64*8192 {
		t.Errorf("the server holds %d items of one node", said)
	}
}

// A node that never stops talking costs the others their time, not their service.
func TestAFloodKeepsNobodyElseWaiting(t *testing.T) {
	s := newAttacked(t)
	victim := s.honest(1)
	rogue := s.honest(2)
	done, ended := make(chan struct{}), make(chan int)
	go func() {
		sent := 0
		defer func() { ended <- sent }()
		for {
			select {
			case <-done:
				return
			default:
			}
			o := &agentstream.Observed{Drift: []string{fmt.Sprint("flood ", sent)}, Members: []agentstream.MemberObserved{{ID: fmt.Sprint("m", sent), Phase: api.MemberFailed}}}
			if rogue.conn.SendObserved(o, nil) != nil {
				return
			}
			sent++
		}
	}()
	begun := time.Now()
	for i := range 3 {
		name := fmt.Sprint("c", i)
		if _, err := s.admin.CreateCluster(t.Context(), api.ClusterRequest{
			Name: name, Size: 1, Cores: 1, Memory: 1 << 30, Stack: api.StackMetal, NodeSelector: map[string]string{"at": "n1"},
		}); err != nil {
			t.Fatal(err)
		}
		s.isPhase(name, api.ClusterReady)
		if _, err := s.admin.DeleteCluster(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		s.isGone(name)
	}
	took := time.Since(begun)
	close(done)
	sent := <-ended
	t.Logf("three clusters lived in %s beside %d observations (%.0f a second)", took, sent, float64(sent)/took.Seconds())
	if sent < 1000 {
		t.Errorf("the flood had %d observations, too few to show anything", sent)
	}
	victim.isReady()
}
