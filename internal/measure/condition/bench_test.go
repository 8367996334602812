package condition

import (
	"io"
	"net"
	"slices"
	"testing"
	"time"
)

// BenchmarkForwarder reports how much one TCP stream carries over a link, in Gbit/s, and by how much its packets leave later than the condition says.
func BenchmarkForwarder(b *testing.B) {
	for name, c := range map[string]Condition{
		"nothing": {}, "delay": {Delay: time.Millisecond}, "loss": {Loss: 1e-9},
	} {
		b.Run(name, func(b *testing.B) {
			l, cfg := link(b, c, c)
			var rates []float64
			for b.Loop() {
				rates = append(rates, stream(b, cfg, 256<<20))
			}
			slices.Sort(rates)
			there, back := l.Counters()
			b.ReportMetric(rates[len(rates)/2], "Gbit/s")
			b.ReportMetric(float64((there.LateSum+back.LateSum).Nanoseconds())/float64(there.Sent+back.Sent)/1e3, "late-µs")
		})
	}
}

// BenchmarkRoundTrip reports the round trip of a datagram over a link, of which two turns of the forwarder are a part.
func BenchmarkRoundTrip(b *testing.B) {
	_, cfg := link(b, Condition{}, Condition{})
	near, far := sockets(b, cfg)
	go echo(far)
	for b.Loop() {
		if _, err := near.Write([]byte{1}); err != nil {
			b.Fatal(err)
		}
		if _, err := near.Read(make([]byte, 64)); err != nil {
			b.Fatal(err)
		}
	}
}

// stream sends bytes from near to far by TCP, and returns how many Gbit/s that were.
func stream(b *testing.B, cfg Config, bytes int64) float64 {
	b.Helper()
	ended := make(chan error, 1)
	conn := connect(b, cfg, func(far net.Conn) {
		_, err := io.CopyN(io.Discard, far, bytes)
		ended <- err
	})
	defer conn.Close()
	began, data := time.Now(), make([]byte, 1<<20)
	for sent := int64(0); sent < bytes; sent += int64(len(data)) {
		if _, err := conn.Write(data); err != nil {
			b.Fatal(err)
		}
	}
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
	return float64(8*bytes) / time.Since(began).Seconds() / 1e9
}
