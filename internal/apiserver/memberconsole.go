package apiserver

import (
	"context"
	"errors"
	"net/http"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// connectMemberConsole makes the request's connection a byte stream to the serial console of a member.
func (s *Server) connectMemberConsole(w http.ResponseWriter, r *http.Request) {
	a := s.memberFor(w, r, hasConsole)
	if a == nil {
		return
	}
	is := func(name string) bool { return r.URL.Query().Get(name) == "true" }
	asked := api.ConsoleRequest{Write: is("write"), Force: is("force"), KeptOnly: is("kept_only"), By: userOf(r.Context())}
	opening, stop := context.WithTimeout(r.Context(), s.cfg.RequestTimeout)
	defer stop()
	console, err := s.cfg.Tunnels.OpenConsole(opening, a.Node, a.ID, asked)
	switch {
	case errors.Is(err, agentstream.ErrInUse):
		fail(codeConsoleInUse, "the console of member %q is in use: %v", a.Member, err).write(w)
		return
	case err != nil:
		s.cfg.Log.InfoContext(r.Context(), "console not opened", "member", a.ID, "node", a.Node, "error", err)
		fail(codeUnreachable, "the console of member %q on node %q can't be reached: %v", a.Member, a.Node, err).write(w)
		return
	}
	defer func() { _ = console.Close() }()
	s.takeOver(w, r, console)
}

// connectMemberDisplay makes the request's connection a byte stream to the VNC server of a member's display.
func (s *Server) connectMemberDisplay(w http.ResponseWriter, r *http.Request) {
	a := s.memberFor(w, r, hasDisplay)
	if a == nil {
		return
	}
	opening, stop := context.WithTimeout(r.Context(), s.cfg.RequestTimeout)
	defer stop()
	display, err := s.cfg.Tunnels.OpenDisplay(opening, a.Node, a.ID)
	if err != nil {
		s.cfg.Log.InfoContext(r.Context(), "display not opened", "member", a.ID, "node", a.Node, "error", err)
		fail(codeUnreachable, "the display of member %q on node %q can't be reached: %v", a.Member, a.Node, err).write(w)
		return
	}
	defer func() { _ = display.Close() }()
	s.takeOver(w, r, display)
}

// memberFor finds the member that a request for a byte stream is about. It answers the request and returns nil if there is none, or has refuses it.
func (s *Server) memberFor(w http.ResponseWriter, r *http.Request, has func(a *api.Assignment, cluster string) error) *api.Assignment {
	c, err := s.findCluster(r.Context(), r.PathValue("name"))
	if err != nil {
		failureOf(err).write(w)
		return nil
	}
	a, err := s.heldMember(r.Context(), c, r.PathValue("member"))
	if err == nil {
		err = has(a, shownName(who(r.Context()), c.Name()))
	}
	if err != nil {
		failureOf(err).write(w)
		return nil
	}
	if f := s.upgradable(w, r); f != nil {
		f.write(w)
		return nil
	}
	return a
}

// hasDisplay refuses a member without a display.
func hasDisplay(a *api.Assignment, _ string) error {
	if a.Display {
		return nil
	}
	return fail(codeNoDisplay, "member %q has no display; create a cluster of virtual machines with --display", a.Member)
}

// hasConsole refuses a member without a serial console, and names what leads to it instead. cluster is the name that the request's user writes.
func hasConsole(a *api.Assignment, cluster string) error {
	switch a.Stack {
	case api.StackVM:
		return nil
	case api.StackMetal:
		return fail(codeNoMemberConsole, "member %q is the machine %q, whose console is for administrators: nearmetal node console %s", a.Member, a.Node, a.Node)
	default:
		return fail(codeNoMemberConsole, "member %q is a container, which has no serial console; log in to it: nearmetal cluster ssh %s %s", a.Member, cluster, a.Member)
	}
}
