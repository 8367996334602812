// Package memberlink is how a member agent and its node agent reach each other, and how the node agent knows which member it hears.
//
// A container has a Unix socket in its control directory, a virtual machine a virtio-serial port or a vsock, a whole machine mutual TLS. Each is a stream of
// bytes: package member speaks the same messages over all of them. Who is at the other end follows from the link itself: from the
// place of the socket, the virtual machine's number, or the certificate. This package must never take a peer's word for it, nor know
// any message. Start with Dialer and Endpoint.
package memberlink

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
)

// Dialer is the member agent's end of a link.
type Dialer interface {
	// Dial connects to the node agent, and returns once it knows as much of who answers as the link can say.
	Dial(ctx context.Context) (net.Conn, error)
}

// Authenticator names the member at the other end of a connection that a node agent accepted.
type Authenticator interface {
	// Member returns the assignment ID of the member. It may wait for the peer, until ctx ends. After an error nothing must be read
	// from the connection or written to it.
	Member(ctx context.Context, conn net.Conn) (string, error)
}

// Endpoint is the node agent's end of a link. A connection that its listener accepted is nobody's until its authenticator has named
// the member.
type Endpoint struct {
	net.Listener
	Authenticator
}

// Open returns the dialer that a member's configuration describes; nil describes the Unix socket at its usual place.
func Open(link *memberconfig.Link) (Dialer, error) {
	if link == nil {
		return Unix{Path: memberconfig.Socket}, nil
	}
	switch link.Kind {
	case memberconfig.LinkUnix:
		return Unix{Path: link.Address}, nil
	case memberconfig.LinkTLS:
		return openTLS(link)
	case memberconfig.LinkVsock:
		return openVsock(link.Address)
	case memberconfig.LinkSerial:
		return openSerial(link.Address)
	default:
		return nil, fmt.Errorf("%q is no kind of link; write %q, %q, %q or %q", link.Kind, memberconfig.LinkUnix, memberconfig.LinkTLS, memberconfig.LinkVsock, memberconfig.LinkSerial)
	}
}

// keepAlive finds out within half a minute that a peer went away without a word, which no Unix socket's does.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4}
