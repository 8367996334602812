package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
	"github.com/nearmetal/nearmetal/internal/trust"
)

func (s *Server) listTokens(context.Context, *struct{}) (*body[api.List[api.TokenInfo]], error) {
	list := api.List[api.TokenInfo]{Items: []api.TokenInfo{}}
	for _, t := range s.cfg.Reader.View().Tokens {
		shown := *t
		shown.SHA256 = ""
		list.Items = append(list.Items, shown)
	}
	return &body[api.List[api.TokenInfo]]{list}, nil
}

// maxUser bounds the name of a token's user.
const maxUser = 64

// tokenCheck gathers what is wrong with the request for a token.
type tokenCheck struct {
	src      *manifest.Source
	problems []api.FieldProblem
}

func (c *tokenCheck) wrong(path, value, format string, args ...any) {
	c.problems = append(c.problems, api.FieldProblem{Location: path, Line: c.src.Line(path), Value: value, Message: fmt.Sprintf(format, args...)})
}

// checkToken refuses what no token can be, and fills in what was left out.
func checkToken(req *api.TokenRequest, src *manifest.Source) error {
	c := tokenCheck{src: src}
	c.bearer(req)
	c.life(req)
	c.limits(req)
	if len(c.problems) > 0 {
		return failFields(codeInvalidRequest, c.problems...)
	}
	return nil
}

// bearer checks who a token is for.
func (c *tokenCheck) bearer(req *api.TokenRequest) {
	wrong, src := c.wrong, c.src
	switch {
	case req.User == "":
		wrong("user", "", "is missing; name the user of the token")
	case len(req.User) > maxUser:
		wrong("user", req.User, "is %d bytes long; use at most %d", len(req.User), maxUser)
	case strings.ContainsFunc(req.User, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }):
		wrong("user", req.User, "%q holds spaces or unprintable characters; write a name like alice", req.User)
	}
	switch req.Role {
	case api.RoleMember, api.RoleViewer:
		if req.Project == "" && !src.Has("project") {
			req.Project = api.DefaultProject
		}
		if problem := manifest.LabelProblem(req.Project, manifest.MaxProjectName); problem != "" {
			wrong("project", req.Project, "%q %s", req.Project, problem)
		}
	case api.RoleAdmin:
		if req.Project != "" || src.Has("project") {
			wrong("project", req.Project, "is given, but a token of role %q has no project; omit it", req.Role)
		}
	case "":
		wrong("role", "", "is missing; use admin, member or viewer")
	default:
		roles := []string{string(api.RoleAdmin), string(api.RoleMember), string(api.RoleViewer)}
		hint := "use admin, member or viewer"
		if near := manifest.Closest(string(req.Role), roles); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		wrong("role", string(req.Role), "%q is not a role; %s", req.Role, hint)
	}
}

// life checks how long a token is valid. Every token ends.
func (c *tokenCheck) life(req *api.TokenRequest) {
	switch given := req.ValidFor.String(); {
	case req.ValidFor == 0 && !c.src.Has("valid_for"):
		req.ValidFor = api.DefaultTokenLife
	case req.ValidFor < api.Duration(time.Second):
		c.wrong("valid_for", given, "%s is too short; every token ends: omit it for a token that is valid for %s, or give at most %s",
			given, api.DefaultTokenLife, api.MaxTokenLife)
	case req.ValidFor > api.MaxTokenLife:
		c.wrong("valid_for", given, "%s is too long; every token ends, the limit is %s", given, api.MaxTokenLife)
	}
}

// limits checks what a token is limited to, which is less than its role allows.
func (c *tokenCheck) limits(req *api.TokenRequest) {
	allowed := tenancy.RoleVerbs(req.Role)
	for i, verb := range req.Verbs {
		path := fmt.Sprintf("verbs[%d]", i)
		switch {
		case !slices.Contains(api.Verbs(), verb):
			c.wrong(path, string(verb), "%q is not a verb; use read, run, change or administer", verb)
		case len(allowed) > 0 && !slices.Contains(allowed, verb):
			c.wrong(path, string(verb), "the role %s does not allow %q; omit the verb, or give another role", req.Role, verb)
		}
	}
	req.Verbs = tenancy.NormalVerbs(req.Verbs)
	if len(req.Clusters) > tenancy.MaxPatterns {
		c.wrong("clusters", "", "are %d patterns; use at most %d", len(req.Clusters), tenancy.MaxPatterns)
	}
	for i, pattern := range req.Clusters {
		if problem := tenancy.PatternProblem(pattern, manifest.MaxClusterName); problem != "" {
			c.wrong(fmt.Sprintf("clusters[%d]", i), pattern, "%q %s", pattern, problem)
		}
	}
	limited := c.src.Has("verbs") || c.src.Has("clusters")
	switch {
	case req.Role == api.RoleAdmin && len(req.Clusters) > 0:
		c.wrong("clusters", "", "are given, but a token of role admin is for the whole site; give the role member or viewer, and a project")
	case req.Role == api.RoleAgent && limited:
		c.wrong("role", string(req.Role), "%q can't be limited; omit verbs and clusters", req.Role)
	}
}

func (s *Server) createToken(ctx context.Context, in *rawBody) (*created[api.NewToken], error) {
	req, src, err := readBody[api.TokenRequest](*in)
	if err != nil {
		return nil, err
	}
	if err := checkToken(&req, src); err != nil {
		return nil, err
	}
	if err := tenancy.Grants(who(ctx), req.Role, req.Limits); err != nil {
		return nil, fail(codeForbidden, "%v", err)
	}
	token := trust.NewToken(s.cfg.Pin)
	info := api.TokenInfo{
		ID: token.ID(), User: req.User, Project: req.Project, Role: req.Role, SHA256: token.SHA256(), CreatedAt: s.cfg.Now().UTC(),
		Limits: req.Limits,
	}
	end := info.CreatedAt.Add(req.ValidFor.Std())
	info.ExpiresAt = &end
	revision, err := s.cfg.Writer.CreateToken(ctx, info)
	if errors.Is(err, state.ErrNoProject) {
		return nil, noProject(req.Project)
	}
	if err != nil {
		return nil, err
	}
	// The token is told when it is good here.
	s.readOwnWrite(ctx, revision)
	info.SHA256 = ""
	return &created[api.NewToken]{Location: "/v1/tokens/" + info.ID, Body: api.NewToken{TokenInfo: info, Token: token.Line()}}, nil
}

func (s *Server) revokeToken(ctx context.Context, in *byID) (*struct{}, error) {
	revision, err := s.cfg.Writer.DeleteToken(ctx, "", in.ID)
	if errors.Is(err, state.ErrNotFound) {
		return nil, fail(codeNoToken, "token %q does not exist; 'nearmetal token list' lists the tokens", in.ID)
	}
	if err != nil {
		return nil, err
	}
	s.readOwnWrite(ctx, revision)
	return nil, nil
}
