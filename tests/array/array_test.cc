// The C++ side of arrays: views, maps over strides, folds in every direction, products, promotion. Values against NumPy
// and the array API are tests/test_array_api.py's.
#include "vivace/array/array.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace vivace::array {
namespace {

using kernels::Fold;

Array counted(int64_t rows, int64_t columns) {
  Array a = *empty(Elem::f32, Shape(rows, columns), kHost);
  for (int64_t i = 0; i < rows * columns; ++i) reinterpret_cast<float*>(a.data)[i] = static_cast<float>(i % 1000) - 500;
  return a;
}
float at(const Array& a, int64_t i, int64_t j) {
  return reinterpret_cast<const float*>(a.data)[i * a.stride[0] + j * a.stride[1]];
}
Array turned(const Array& a) {
  const int axes[] = {1, 0};
  return *permute(a, axes);
}

TEST(Array, MapsOverTransposedViews) {
  cpu::Pool pool(2);
  const Array a = counted(300, 700), t = turned(a);
  Operand o[2];
  o[0].array = &t, o[1].weak = Weak::integer, o[1].integer = 2;
  const Array r = *apply(Func::multiply, o, nullptr, Exec{&pool});
  ASSERT_EQ(r.shape, Shape(700, 300));
  EXPECT_TRUE(r.is_dense());
  for (int64_t i = 0; i < 700; ++i)
    for (int64_t j = 0; j < 300; ++j) ASSERT_EQ(at(r, i, j), 2 * at(a, j, i));
}

TEST(Array, FoldsInEveryDirectionAndAlwaysTheSame) {
  const Array a = counted(300, 700), t = turned(a);
  for (const uint32_t axes : {1u, 2u, 3u})
    for (const Array* x : {&a, &t}) {
      cpu::Pool one(1), two(2);
      const Array s = *fold(Fold::sum, *x, axes, true, Elem::f32, Exec{&one});
      const Array again = *fold(Fold::sum, *x, axes, true, Elem::f32, Exec{&two});
      EXPECT_EQ(std::memcmp(s.data, again.data, static_cast<size_t>(s.nbytes())), 0);
      const int64_t rows = x->shape[0], columns = x->shape[1];
      for (int64_t i = 0; i < s.shape[0]; ++i)
        for (int64_t j = 0; j < s.shape[1]; ++j) {
          double want = 0, size = 0;
          for (int64_t p = axes & 1 ? 0 : i; p < (axes & 1 ? rows : i + 1); ++p)
            for (int64_t q = axes & 2 ? 0 : j; q < (axes & 2 ? columns : j + 1); ++q)
              want += at(*x, p, q), size += std::fabs(at(*x, p, q));
          // Every addition rounds once; a tree of 300 * 700 values is 18 deep, with 16 + 128 in a row below it.
          ASSERT_NEAR(at(s, i, j), want, 160 * 6e-8 * size);
        }
    }
}

TEST(Array, MultipliesWithoutCopyingATransposedOperand) {
  const Array a = counted(300, 700), t = turned(a);
  const Array m = *matmul(a, t, Exec{});
  for (const auto& [i, j] : {std::pair<int64_t, int64_t>{0, 0}, {5, 9}, {299, 31}}) {
    double want = 0, size = 0;
    for (int64_t k = 0; k < 700; ++k)
      want += double(at(a, i, k)) * at(a, j, k), size += std::fabs(double(at(a, i, k)) * at(a, j, k));
    EXPECT_NEAR(at(m, i, j), want, 700 * 6e-8 * size);
  }
}

TEST(Array, ReshapesAsAViewWhereStridesSayIt) {
  const Array a = counted(6, 4);
  EXPECT_EQ(reshape_view(a, Shape(3, 8))->data, a.data);
  EXPECT_FALSE(reshape_view(turned(a), Shape(24)));
  const Array f = flip(a, 1);
  EXPECT_EQ(at(f, 0, 1), at(a, 5, 1));
  EXPECT_EQ(f.stride[0], -4);
}

TEST(Array, RefusesShapesThatDoNotFitAndShowsThem) {
  const Array a = counted(2, 3), b = counted(4, 3);
  Operand o[2];
  o[0].array = &a, o[1].array = &b;
  const Status s = apply(Func::add, o, nullptr, Exec{}).status();
  EXPECT_EQ(s.code(), Code::kInvalidShape);
  EXPECT_NE(s.message().find("\n    2 3\n    4 3"), std::string::npos) << s.message();
}

TEST(Array, WritesOverItsOwnOperands) {
  const Array a = counted(1, 8);
  const Index all{}, rest{Index::range, 1, 1, 7}, first{Index::range, 0, 1, 7};
  const Array from = *index(a, std::array{all, first}), to = *index(a, std::array{all, rest});
  Operand o;
  o.array = &from;
  ASSERT_TRUE(assign(to, o, Exec{}).ok());
  for (int64_t i = 1; i < 8; ++i) EXPECT_EQ(at(a, 0, i), static_cast<float>(i - 1 - 500));
  Array wide = a;
  wide.stride[1] = 0;
  EXPECT_EQ(assign(wide, o, Exec{}).code(), Code::kAliasError);
}

TEST(Array, PromotesAsTheStandardSays) {
  EXPECT_FALSE(promote(Elem::i32, Elem::f32).ok());
  EXPECT_EQ(*promote(Elem::f16, Elem::bf16), Elem::f32);
  EXPECT_EQ(*promote(Elem::bf16, Elem::f32), Elem::f32);
  EXPECT_EQ(*promote(Elem::u8, Elem::i8), Elem::i16);
  EXPECT_EQ(promote(Elem::u64, Elem::i8).status().code(), Code::kInvalidDType);
  EXPECT_EQ(promote(Elem::e4m3, Elem::f32).status().code(), Code::kInvalidDType);
}

TEST(Array, OverflowsAndOutOfMemoryAreErrors) {
  const int64_t huge[] = {int64_t{1} << 31, int64_t{1} << 31, 4};
  EXPECT_EQ(shape_of(huge, Elem::f32).status().code(), Code::kInvalidShape);
  const int64_t much[] = {int64_t{1} << 45};
  EXPECT_EQ(empty(Elem::f32, *shape_of(much, Elem::f32), kHost).status().code(), Code::kOutOfMemory);
}

}  // namespace
}  // namespace vivace::array
