package member

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

const (
	// admitDeadline bounds how long a connection may take to show whose it is: a TLS handshake takes seconds where there is little
	// CPU time.
	admitDeadline = 10 * time.Second
	// maxStrangers bounds how many connections do so at once. Further ones wait unaccepted.
	maxStrangers = 64
	// acceptPause is how long nothing is accepted after that failed, as it does for want of file descriptors.
	acceptPause = 100 * time.Millisecond
)

var errReplaced = errors.New("a newer connection of the member took its place")

// accept lets connections in until Close. Connections that follow each other too fast wait: a member that connects in a loop
// costs this agent little. One that does not show whose it is keeps no other waiting.
func (s *Server) accept() {
	pace := bucket{perSecond: 20, burst: 20}
	strangers := make(chan struct{}, maxStrangers)
	for number := uint64(1); ; number++ {
		select {
		case strangers <- struct{}{}:
		case <-s.serving.Done():
			return
		}
		nc, err := s.cfg.Link.Accept()
		switch {
		case s.serving.Err() != nil:
			if err == nil {
				_ = nc.Close()
			}
			return
		case err != nil:
			<-strangers
			s.log.Error("connections of a member can't be accepted; trying again", "error", err)
			pause(s.serving, acceptPause)
		default:
			s.done.Go(func() {
				c, err := s.welcome(nc, number)
				<-strangers
				if err != nil {
					s.log.Warn("refused a connection to a member's link", "peer", nc.RemoteAddr(), "error", err)
					_ = nc.Close()
					return
				}
				defer context.AfterFunc(s.serving, func() { c.end(net.ErrClosed) })()
				c.run()
			})
		}
		pause(s.serving, pace.take(time.Now(), 1))
	}
}

// welcome makes a connection the member's only one, if it is the member's. The number counts connections as they were accepted: one that
// took long to show whose it is does not take the place of one that came after it.
func (s *Server) welcome(nc net.Conn, number uint64) (*serverConn, error) {
	if err := s.admit(nc); err != nil {
		return nil, err
	}
	s.turn.Lock()
	defer s.turn.Unlock()
	if s.newest != nil && s.newest.number > number {
		return nil, errReplaced
	}
	if s.newest != nil {
		s.newest.end(errReplaced)
		<-s.newest.ended
	}
	s.newest = newServerConn(s, nc, number)
	return s.newest, nil
}

// admit refuses connections that are not the member's.
func (s *Server) admit(nc net.Conn) error {
	ctx, cancel := context.WithTimeout(s.serving, admitDeadline)
	defer cancel()
	member, err := s.cfg.Link.Member(ctx, nc)
	if err != nil {
		return err
	}
	if member != s.cfg.Member {
		return fmt.Errorf("the peer is member %s", member)
	}
	return nil
}
