package condition

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// What Verify allows a round trip beyond its condition: the machine's own ways.
const (
	extraTrip     = 3 * time.Millisecond
	extraFraction = 0.05
)

// ErrNotInForce reports that a link does not do what its conditions say.
var ErrNotInForce = errors.New("the link does not have its conditions")

// Verify measures round trips of the link, and returns ErrNotInForce if the shortest of them is not what the delays of both directions say. A machine
// that is busy is given several tries, up to tries packets that came back or half a second for each.
func (l *Link) Verify(ctx context.Context, tries int) error {
	there, back := l.there.condition(), l.back.condition()
	least := there.Delay + back.Delay - there.Jitter - back.Jitter
	if there.Reorder > 0 {
		least -= there.Delay - there.Jitter
	}
	if back.Reorder > 0 {
		least -= back.Delay - back.Jitter
	}
	most := there.Delay + back.Delay + extraTrip
	most += time.Duration(extraFraction * float64(most))
	shortest, answered := time.Duration(0), 0
	for i := range tries {
		trip, err := l.roundTrip(ctx, i, most+500*time.Millisecond)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue // lost, perhaps
		}
		if err != nil {
			return err
		}
		if trip < least {
			return fmt.Errorf("%w: a round trip takes %v, and its delays are %v", ErrNotInForce, trip, there.Delay+back.Delay)
		}
		if shortest == 0 || trip < shortest {
			shortest = trip
		}
		if answered++; answered >= 3 && shortest <= most {
			return nil
		}
	}
	if answered == 0 {
		return fmt.Errorf("%w: none of %d packets came back", ErrNotInForce, tries)
	}
	return fmt.Errorf("%w: the shortest of %d round trips takes %v, and its delays are %v", ErrNotInForce, answered, shortest, there.Delay+back.Delay)
}

// tripPatience is how long RoundTrips waits for an answer.
const tripPatience = 2 * time.Second

// RoundTrips measures round trips of the link one after the other, with a pause between two, until its context ends. It returns those whose packets came
// back.
func (l *Link) RoundTrips(ctx context.Context, pause time.Duration) ([]time.Duration, error) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	var seen []time.Duration
	for i := 0; ; i++ {
		trip, err := l.roundTrip(ctx, i&0xffff, tripPatience)
		switch {
		case ctx.Err() != nil:
			return seen, nil
		case errors.Is(err, os.ErrDeadlineExceeded): // lost, perhaps
		case err != nil:
			return seen, err
		default:
			seen = append(seen, trip)
		}
		select {
		case <-ctx.Done():
			return seen, nil
		case <-tick.C:
		}
	}
}

// roundTrip is how long an echo takes from near to far and back, or os.ErrDeadlineExceeded.
func (l *Link) roundTrip(ctx context.Context, number int, patience time.Duration) (time.Duration, error) {
	return echoes(ctx, l.near, l.far, number, patience)
}

// echoes is how long an echo takes from a namespace to an address and back (RFC 792, RFC 4443), or os.ErrDeadlineExceeded.
func echoes(ctx context.Context, from netns.Handle, to netip.Addr, number int, patience time.Duration) (time.Duration, error) {
	network, protocol, kind := "ip4:icmp", 1, icmp.Type(ipv4.ICMPTypeEcho)
	if to.Is6() {
		network, protocol, kind = "ip6:ipv6-icmp", 58, ipv6.ICMPTypeEchoRequest
	}
	var conn net.PacketConn
	if err := from.Do(func() (err error) {
		conn, err = (&net.ListenConfig{}).ListenPacket(ctx, network, "")
		return err
	}); err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	id := os.Getpid() & 0xffff
	request, err := (&icmp.Message{Type: kind, Body: &icmp.Echo{ID: id, Seq: number}}).Marshal(nil)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := conn.SetDeadline(began.Add(patience)); err != nil {
		return 0, err
	}
	if _, err := conn.WriteTo(request, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return 0, err
	}
	data := make([]byte, fullPacketBytes)
	for {
		n, _, err := conn.ReadFrom(data)
		if err != nil {
			return 0, err
		}
		trip := time.Since(began)
		answer, err := icmp.ParseMessage(protocol, data[:n])
		if err != nil {
			continue
		}
		echo, ok := answer.Body.(*icmp.Echo)
		if ok && (answer.Type == ipv4.ICMPTypeEchoReply || answer.Type == ipv6.ICMPTypeEchoReply) && echo.ID == id && echo.Seq == number {
			return trip, nil
		}
	}
}
