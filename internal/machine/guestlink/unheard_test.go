package guestlink

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// hosts is a guest's port, as a listener.
type hosts chan net.Conn

func (h hosts) Accept() (net.Conn, error) {
	conn, ok := <-h
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (h hosts) Close() error   { return nil }
func (h hosts) Addr() net.Addr { return address{} }

// TestAGuestThatIsNotHeardGetsANewConnection has a hypervisor that takes what is said over the first connection and brings nothing back.
func TestAGuestThatIsNotHeardGetsANewConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, port := &machine{setups: make(chan Setup, 1)}, make(hosts, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = Serve(ctx, port, m)
		}()
		dials := 0
		c := NewClient(func(context.Context) (net.Conn, error) {
			host, guest := net.Pipe()
			if dials++; dials == 1 {
				go func() { _, _ = io.Copy(io.Discard, guest) }()
			} else {
				port <- guest
			}
			return host, nil
		})
		began := time.Now()
		if err := c.Setup(ctx, Setup{Hostname: "c1-0"}); err != nil {
			t.Errorf("the guest was not reached again: %v", err)
		} else if got := <-m.setups; got.Hostname != "c1-0" {
			t.Errorf("it got %+v", got)
		}
		if took := time.Since(began); took > 2*mostLooks*lookEvery {
			t.Errorf("that took %v", took)
		}
		c.Close()
		cancel()
		close(port)
		<-served
	})
}

// TestAGuestThatIsSlowOnEachConnectionIsHeard has a guest that begins each connection only after more time than the first one gets.
func TestAGuestThatIsSlowOnEachConnectionIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, port := &machine{setups: make(chan Setup, 1)}, make(hosts, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = Serve(ctx, port, m)
		}()
		c := NewClient(func(context.Context) (net.Conn, error) {
			host, guest := net.Pipe()
			go func() {
				time.Sleep(3 * mostLooks * lookEvery)
				port <- guest
			}()
			return host, nil
		})
		if err := c.Setup(ctx, Setup{Hostname: "c1-0"}); err != nil {
			t.Errorf("the slow guest was not heard: %v", err)
		}
		c.Close()
		cancel()
		close(port)
		<-served
	})
}
