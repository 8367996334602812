package agentstream

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"testing"
)

// FuzzUp has a server receive whatever an agent sends, line by line: it ends the stream or takes a state that is bounded, and that arrives the
// same when it is sent on.
func FuzzUp(f *testing.F) {
	for _, seed := range []string{
		`{"hello":{"run":"r","node":{"name":"n1"},"term":7}}` + "\n",
		`{"heartbeat":{"time":"2026-01-02T03:04:05Z","ping":3}}` + "\n",
		`{"log":{"job_id":"j.1","offset":5,"data":"aGVsbG8="}}` + "\n",
		`{"home_counted":{"id":1,"usage":{},"failure":"no"}}` + "\n",
		`{"spans":[{"id":"00112233445566aa","parent":"","assignment_id":"u1.c-0.1","name":"start","seconds":-1e300,"ago_seconds":1}]}` + "\n",
		`{"observed":{"items":[{"list":"member","key":"a","value":{"id":"a","phase":"ready"}}],"head":{"term":7}}}` + "\n" +
			`{"observed":{"items":[{"list":"member","key":"a"},{"list":"clean","key":"a","value":"a"}],"head":{"term":7}}}` + "\n",
		`{"observed":{"items":[{"list":"job","key":"j","value":{"id":"j"}},{"list":"build","key":"b.1","value":{"id":"b","attempt":1}}],"head":{}}}` + "\n",
		`{"observed":{"items":[{"list":"member","key":"a","edit":{"phase":"ready"}},{"list":"unheard","key":"a","value":1}],"head":null}}` + "\n",
		"{\"observed\":{\"items\":[{}]}}\n[]\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		server := &ServerConn{conn: conn{out: io.Discard, in: bufio.NewReader(bytes.NewReader(sent))}, observed: newIncoming(observedLists())}
		for {
			up, err := server.Receive()
			if err != nil {
				return
			}
			if held := server.observed; held.items < 0 || held.items > maxHeldItems || held.bytes < 0 || held.bytes > held.mostBytes {
				t.Fatalf("%d items of %d bytes are held", held.items, held.bytes)
			}
			if up.Piece != nil {
				t.Fatalf("a piece was handed on: %+v", up.Piece)
			}
			if up.Observed != nil {
				arrivesTheSame(t, up.Observed)
			}
		}
	})
}

// arrivesTheSame sends an observation and wants that it is received as it was sent, as far as elements have keys of their own.
func arrivesTheSame(t *testing.T, o *Observed) {
	t.Helper()
	var wire bytes.Buffer
	agent := &ClientConn{conn: conn{out: &wire}, observed: outgoing[Observed]{lists: observedLists()}}
	if err := agent.SendObserved(o, nil); err != nil {
		t.Fatalf("what was received can't be sent: %v", err)
	}
	server := &ServerConn{conn: conn{in: bufio.NewReader(&wire)}, observed: newIncoming(observedLists())}
	first, err := server.Receive()
	if err != nil {
		t.Fatalf("what was sent can't be received: %v", err)
	}
	wire.Reset()
	agent = &ClientConn{conn: conn{out: &wire}, observed: outgoing[Observed]{lists: observedLists()}}
	if err := agent.SendObserved(first.Observed, nil); err != nil {
		t.Fatal(err)
	}
	server = &ServerConn{conn: conn{in: bufio.NewReader(&wire)}, observed: newIncoming(observedLists())}
	second, err := server.Receive()
	if err != nil || !reflect.DeepEqual(first.Observed, second.Observed) {
		t.Fatalf("sent again it arrives as %s (%v), want %s", text(t, second.Observed), err, text(t, first.Observed))
	}
}

func text(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// FuzzTunnelFrames has a server read whatever comes as a tunnel: it hands on no more than arrived, and takes no stream that broke off for one that
// has ended.
func FuzzTunnelFrames(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, 'o', 'k', 0, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 'x'})
	f.Add([]byte{0, 0, 0, 9, 'c', 'u', 't'})
	f.Fuzz(func(t *testing.T, sent []byte) {
		c := newTunnelConn(bytes.NewReader(sent), io.Discard, func() error { return nil }, func() {}, func() {})
		got, err := io.ReadAll(c)
		if len(got) > len(sent) {
			t.Fatalf("%d bytes were read of %d", len(got), len(sent))
		}
		if err == nil && !c.ended {
			t.Fatal("a tunnel that broke off was read as one that has ended")
		}
	})
}
