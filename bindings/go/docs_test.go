package ferry

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"strings"
	"testing"
)

// Everything that go doc lists has a comment: types, functions, methods, constants. A type's comment covers
// its fields; the methods of fmt.Stringer and error need none.
func TestWhatIsExportedIsDocumented(t *testing.T) {
	documented(t, ".", "ferry", 80)
	documented(t, "kv", "kv", 70)
}

func documented(t *testing.T, folder, name string, least int) {
	files := token.NewFileSet()
	packages, err := parser.ParseDir(files, folder, func(file fs.FileInfo) bool {
		return !strings.HasSuffix(file.Name(), "_test.go")
	}, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	check := func(name *ast.Ident, comments ...*ast.CommentGroup) {
		if !name.IsExported() || name.Name == "String" || name.Name == "Error" {
			return
		}
		seen++
		for _, comment := range comments {
			if comment != nil {
				return
			}
		}
		t.Errorf("%s: %s has no comment", files.Position(name.Pos()), name.Name)
	}
	for _, file := range packages[name].Files {
		for _, declaration := range file.Decls {
			switch it := declaration.(type) {
			case *ast.FuncDecl:
				if it.Recv == nil || receiver(it).IsExported() {
					check(it.Name, it.Doc)
				}
			case *ast.GenDecl:
				checkSpecs(it, check)
			}
		}
	}
	if seen < least {
		t.Errorf("%s: only %d names were seen", name, seen)
	}
}

func checkSpecs(declaration *ast.GenDecl, check func(*ast.Ident, ...*ast.CommentGroup)) {
	for _, spec := range declaration.Specs {
		switch it := spec.(type) {
		case *ast.ValueSpec:
			// One comment covers a group of constants or variables.
			for _, name := range it.Names {
				check(name, declaration.Doc, it.Doc, it.Comment)
			}
		case *ast.TypeSpec:
			check(it.Name, declaration.Doc, it.Doc)
		}
	}
}

func receiver(function *ast.FuncDecl) *ast.Ident {
	kind := function.Recv.List[0].Type
	if pointer, ok := kind.(*ast.StarExpr); ok {
		kind = pointer.X
	}
	return kind.(*ast.Ident)
}
